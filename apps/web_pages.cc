#include "apps/web_pages.h"

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "api_files.h"
#include "base/check.h"
#include "recipe/json.h"
#include "web_files.h"

namespace galley::apps {
namespace {

struct WebFile {
  std::string_view name;  // in web/
  gateway::Page page;     // without its bytes
};
constexpr std::array kWebFiles{
    WebFile{"index.html", {"/", "text/html; charset=utf-8", {}}},
    WebFile{"app.js", {"/app.js", "text/javascript; charset=utf-8", {}}},
    WebFile{"api.js", {"/api.js", "text/javascript; charset=utf-8", {}}},
    WebFile{"monitor.js", {"/monitor.js", "text/javascript; charset=utf-8", {}}},
    WebFile{"style.css", {"/style.css", "text/css; charset=utf-8", {}}},
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string page_introduction(std::string_view model,
                              const std::optional<Introduction>& introduction) {
  recipe::JsonArray questions;
  for (const std::string& question :
       introduction ? introduction->questions : std::vector<std::string>{}) {
    questions.emplace_back(question);
  }
  return to_json(recipe::JsonObject{{"model", model},
                                    {"about", introduction ? introduction->about : ""},
                                    {"questions", std::move(questions)},
                                    {"version", GALLEY_VERSION}});
}

std::vector<gateway::Page> web_pages(std::string_view introduction) {
  std::vector<gateway::Page> pages{{"/introduction.json", "application/json", introduction}};
  for (const WebFile& file : kWebFiles) {
    for (const web_files::File& embedded : web_files::files()) {
      if (embedded.path == file.name) {
        gateway::Page& page = pages.emplace_back(file.page);
        page.bytes = text_of(embedded.bytes);
      }
    }
  }
  GALLEY_ASSERT(pages.size() == kWebFiles.size() + 1);
  return pages;
}

std::string_view api_description() {
  GALLEY_ASSERT(api_files::files().size() == 1);
  return text_of(api_files::files().front().bytes);
}

}  // namespace galley::apps
