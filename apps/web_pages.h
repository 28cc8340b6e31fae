#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/introduction.h"
#include "gateway/routes.h"

namespace galley::apps {

// What the page asks for at its start, as JSON: {"model", "about", "questions", "version"}.
[[nodiscard]] std::string page_introduction(std::string_view model,
                                            const std::optional<Introduction>& introduction);

// The files of web/, and `introduction` as /introduction.json, which must outlive them.
[[nodiscard]] std::vector<gateway::Page> web_pages(std::string_view introduction);

// apps/api/openapi.json.
[[nodiscard]] std::string_view api_description();

}  // namespace galley::apps
