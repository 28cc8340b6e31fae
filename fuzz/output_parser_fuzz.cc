// Any text under any options: the reply does not depend on how it is cut, ends exactly once, keeps
// the rules of event.h, gives calls whose arguments parse, and encodes to JSON in every protocol.
// Input: one byte of options, one of stop strings and reason, one that seeds the cuts, then the
// text.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/reply.h"
#include "recipe/reply_for_test.h"

namespace {

using namespace galley::recipe;

class FixedIds final : public IdSource {
 public:
  std::string next_id() override { return "00000000000000000000"; }
};

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

Request request_of(std::uint8_t options, std::uint8_t stops) {
  Request request;
  request.conversation.tools = {
      {.name = "f",
       .parameters =
           *parse_json(R"({"properties":{"on":{"type":"boolean"},"s":{"type":"string"}}})")}};
  request.compat = (options & 1U) != 0 ? Compat::kRecipe02 : Compat::kGalley;
  request.output.parse_tool_calls = (options & 2U) != 0;
  request.output.json_output = (options & 4U) != 0;
  request.output.in_tool_block = (options & 2U) != 0 && (options & 8U) != 0;
  request.output.thinking = (options & 16U) != 0;
  request.output.stage =
      request.output.thinking ? StartStage::kReasoningStart : StartStage::kAnswer;
  request.protocol = static_cast<Protocol>((options >> 5U) % 3);
  const std::vector<std::vector<std::string>> choices = {
      {}, {"END"}, {"\n", "\nEND"}, {"aab", "ab", "毕毕"}, {"</think>", "<｜DSML｜ c"}, {"\n\n"}};
  request.output.stop_sequences = choices[stops % choices.size()];
  return request;
}

std::vector<std::string_view> cut(std::string_view text, std::uint32_t state) {
  std::vector<std::string_view> pieces;
  for (std::size_t at = 0; at < text.size();) {
    state = state * 1'664'525U + 1'013'904'223U;
    const std::size_t size = 1 + (state >> 24U) % 7;
    pieces.push_back(text.substr(at, size));
    at += size;
  }
  return pieces;
}

void check_encoders(const Request& request,
                    std::string_view text,
                    std::optional<SourceFinish> finish) {
  FixedIds ids;
  std::string stream;
  const ReplyInfo info{.id = "r", .call_ids = &ids};
  const auto streamed = StreamEncoder::create(request, info, stream);
  const auto whole = WholeEncoder::create(request, info);
  for (EventSink* sink :
       {static_cast<EventSink*>(streamed.get()), static_cast<EventSink*>(whole.get())}) {
    const auto parser = OutputParser::create(request, nullptr, *sink);
    parser->feed_text(text, 1);
    parser->finish(finish);
  }
  require(parse_json(whole->body()).has_value());
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t end = stream.find("\n\n", at);
    require(end != std::string::npos);
    const std::string_view frame = std::string_view(stream).substr(at, end - at);
    const std::size_t data = frame.find("data: ");
    require(data != std::string_view::npos);
    const std::string_view json = frame.substr(data + 6);
    require(json == "[DONE]" || parse_json(json).has_value());
    at = end + 2;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 3, size - 3);
  const Request request = request_of(data[0], data[1]);
  const std::optional<SourceFinish> finish = data[1] < 64    ? std::optional<SourceFinish>()
                                             : data[1] < 128 ? SourceFinish::kLength
                                             : data[1] < 160 ? SourceFinish::kContentFilter
                                                             : SourceFinish::kStop;
  const Transcript expected = transcript_of(request, {text}, finish);
  require(expected.problem.empty());
  require(expected.starts == 1);
  require(expected.finishes == 1);
  if (request.compat == Compat::kGalley) {
    require(transcript_of(request, cut(text, data[2]), finish) == expected);
    require(problem_with_calls(expected).empty());
    require(!request.output.parse_tool_calls ||
            expected.content.find("｜DSML｜") == std::string::npos);
  } else if (!request.output.json_output) {  // its JSON mode depends on the cuts
    require(transcript_of(request, cut(text, data[2]), finish) == expected);
  }
  check_encoders(request, text, finish);
  return 0;
}
