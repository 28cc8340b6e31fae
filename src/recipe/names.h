#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "recipe/conversation.h"
#include "recipe/event.h"
#include "recipe/output_parser.h"
#include "recipe/request.h"

// How the codec's enums are spelled outside of it: in requests, golden records, flags and other
// languages. One table an enum, in the order of its values.
namespace galley::recipe {

template <class Enum>
inline constexpr std::array<std::string_view, 0> kNames{};

template <>
inline constexpr std::array<std::string_view, 4> kNames<Protocol> = {"chat", "responses",
                                                                     "messages", "completions"};
template <>
inline constexpr std::array<std::string_view, 2> kNames<ModelVersion> = {"v4", "v4.1"};
template <>
inline constexpr std::array<std::string_view, 2> kNames<Compat> = {"galley", "recipe-0.2"};
template <>
inline constexpr std::array<std::string_view, 4> kNames<Effort> = {"low", "high", "xhigh", "max"};
template <>
inline constexpr std::array<std::string_view, 3> kNames<ToolChoice> = {"auto", "none", "required"};
template <>
inline constexpr std::array<std::string_view, 4> kNames<ImageDetail> = {"low", "high", "original",
                                                                        "auto"};
template <>
inline constexpr std::array<std::string_view, 2> kNames<Image::Kind> = {"url", "data_url"};
template <>
inline constexpr std::array<std::string_view, 4> kNames<ResponseFormat::Kind> = {
    "text", "json_object", "json_schema", "regex"};
template <>
inline constexpr std::array<std::string_view, 5> kNames<Constraint::Kind> = {
    "none", "tool_call", "tool_call_required", "json", "regex"};
template <>
inline constexpr std::array<std::string_view, 4> kNames<StartStage> = {
    "answer", "reasoning_start", "reasoning_continuation", "content_continuation"};
template <>
inline constexpr std::array<std::string_view, 3> kNames<SourceFinish> = {"stop", "length",
                                                                         "content_filter"};
template <>
inline constexpr std::array<std::string_view, 7> kNames<FinishReason> = {
    "stop",           "stop_sequence", "tool_calls", "length",
    "content_filter", "end_of_stream", "broken_call"};

template <class Enum>
[[nodiscard]] constexpr std::string_view name_of(Enum value) {
  static_assert(!kNames<Enum>.empty(), "this enum has no table");
  return kNames<Enum>[static_cast<std::size_t>(value)];
}

template <class Enum>
[[nodiscard]] constexpr std::optional<Enum> named(std::string_view name) {
  for (std::size_t i = 0; i < kNames<Enum>.size(); ++i) {
    if (kNames<Enum>[i] == name) {
      return static_cast<Enum>(i);
    }
  }
  return std::nullopt;
}

// A last enum value is the last name.
static_assert(name_of(Protocol::kCompletions) == kNames<Protocol>.back());
static_assert(name_of(ModelVersion::kV41) == kNames<ModelVersion>.back());
static_assert(name_of(Compat::kRecipe02) == kNames<Compat>.back());
static_assert(name_of(Effort::kMax) == kNames<Effort>.back());
static_assert(name_of(ToolChoice::kRequired) == kNames<ToolChoice>.back());
static_assert(name_of(ImageDetail::kAuto) == kNames<ImageDetail>.back());
static_assert(name_of(Image::Kind::kDataUrl) == kNames<Image::Kind>.back());
static_assert(name_of(ResponseFormat::Kind::kRegex) == kNames<ResponseFormat::Kind>.back());
static_assert(name_of(Constraint::Kind::kRegex) == kNames<Constraint::Kind>.back());
static_assert(name_of(StartStage::kContentContinuation) == kNames<StartStage>.back());
static_assert(name_of(SourceFinish::kContentFilter) == kNames<SourceFinish>.back());
static_assert(name_of(FinishReason::kBrokenCall) == kNames<FinishReason>.back());

}  // namespace galley::recipe
