#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/doctor_facts.h"

// What the facts of `galley doctor` mean, and how they are shown.
namespace galley::apps {

enum class Verdict : std::uint8_t {
  kGood,
  kRight,    // it computes what it should
  kPoor,     // it works, slower than it could or up to a limit that may be met
  kMissing,  // this machine does not have it; what is used instead works
  kFailed,   // it computes wrong numbers
};
[[nodiscard]] std::string_view name(Verdict verdict);

struct Finding {
  std::string_view section;
  std::string what;
  std::string value;             // for people, with its unit
  std::optional<double> number;  // the same for programs, in `unit`
  std::string_view unit;
  Verdict verdict = Verdict::kGood;
  std::string advice;  // what to do about it; "" when it is good
};

// A pure function: the same facts give the same findings, in the order they are shown.
[[nodiscard]] std::vector<Finding> judge(const DoctorFacts& facts);

// False when something computes wrong numbers.
[[nodiscard]] bool sound(std::span<const Finding> findings);

// A section's name, then its findings in columns, which are the same in all sections.
[[nodiscard]] std::string doctor_table(std::span<const Finding> findings);
[[nodiscard]] nlohmann::json doctor_json(std::span<const Finding> findings);

}  // namespace galley::apps
