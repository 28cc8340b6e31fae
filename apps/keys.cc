#include <fmt/core.h>
#include <memory>
#include <string>

#include "apps/commands.h"
#include "apps/input.h"
#include "base/entropy.h"
#include "base/secret.h"
#include "gateway/api_keys.h"
#include "recipe/random_ids.h"

namespace galley::apps {
namespace {

Result<void> make_key(const std::string& name) {
  // 64 bits of chance each.
  const Secret key(std::string(gateway::kApiKeyPrefix) +
                   recipe::RandomIds(entropy_seed()).next_id() +
                   recipe::RandomIds(entropy_seed()).next_id());
  const std::string line = gateway::api_key_line(name, key);
  GALLEY_CHECK_OK(gateway::ApiKeys::parse(line));  // the name
  fmt::print(
      "The key, shown only now:\n\n  {}\n\n"
      "The line for the file that server.keys_file names:\n\n  {}\n\n"
      "Limits may follow on it: concurrency=N, requests=N and tokens=N, the last two a minute.\n",
      key.reveal(), line);
  return {};
}

}  // namespace

void add_keys(CLI::App& galley, int& exit_code) {
  CLI::App* const keys = galley.add_subcommand("keys", "API keys of those who may use a server.");
  need_subcommand(*keys);
  const auto name = std::make_shared<std::string>();
  CLI::App* const make = keys->add_subcommand("new", "Makes a key and the line that admits it.");
  make->add_option("name", *name, "Whose it is: up to 64 of [A-Za-z0-9._-].")->required();
  make->callback([name, &exit_code] {
    if (const auto made = make_key(*name); !made) {
      exit_code = report(made.error());
    }
  });
}

}  // namespace galley::apps
