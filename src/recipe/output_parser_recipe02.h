#pragma once

#include <memory>

#include "recipe/event.h"
#include "recipe/output_parser.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

// Internal to OutputParser::create().
namespace galley::recipe {

// deepseek-recipe 0.2.0's reading, defects included (spec recipe 9.5). As OutputParser::create().
[[nodiscard]] std::unique_ptr<OutputParser> make_output_parser_recipe02(
    const Request& request, std::shared_ptr<const Tokenizer> tokenizer, EventSink& sink);

}  // namespace galley::recipe
