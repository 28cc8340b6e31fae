#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/event.h"
#include "recipe/marker_scanner.h"
#include "recipe/output_parser.h"
#include "recipe/request.h"

// Reading the tool block of a reply: markup -> CallNamed and CallArguments events (spec recipe
// 3.1 to 3.4). Internal to the output parser.
namespace galley::recipe {

// Parameters that the tools of a request declare, for markup that leaves a value's type open.
class DeclaredParameters {
 public:
  enum class Kind : std::uint8_t { kUndeclared, kString, kOther };

  explicit DeclaredParameters(const Conversation& conversation);
  [[nodiscard]] Kind find(std::string_view tool, std::string_view parameter) const;

 private:
  struct Parameter {
    std::string name;
    Kind kind{};
  };
  struct Declaration {
    std::string tool;
    std::vector<Parameter> parameters;
  };
  std::vector<Declaration> declarations_;
};

class ToolBlock {
 public:
  virtual ~ToolBlock() = default;
  // Eats everything: after the end of the block text is dropped.
  virtual void feed(std::string_view text, ByteKind kind) = 0;
  // End of the stream: completes what is open, or leaves it open when the reply was cut short.
  virtual void finish(std::optional<SourceFinish> reason) = 0;
  // A call cannot be used; nothing after it may be read.
  [[nodiscard]] virtual bool broken() const = 0;
  [[nodiscard]] virtual std::int64_t calls() const = 0;  // named so far
};

// What the parser had read when the block began.
enum class BlockStart : std::uint8_t {
  kAfterMarker,  // `<｜DSML｜`; the rest of the opening tag follows
  kInside,       // the prompt opened the block
};

// Galley's reading: only whole, marked tags count, argument names end at their closing quote,
// values that are no JSON become strings, and a call that cannot be read without guessing is
// refused (docs/decisions).
std::unique_ptr<ToolBlock> make_tool_block(const Request& request,
                                           bool by_spelling,
                                           BlockStart start,
                                           EventSink& sink);

// deepseek-recipe 0.2.0's reading, quirks included.
std::unique_ptr<ToolBlock> make_tool_block_recipe02(bool by_spelling, EventSink& sink);

}  // namespace galley::recipe
