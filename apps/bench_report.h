#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/bench_load.h"

namespace galley::apps {

// One HTML page with the figures and plots of a run, for itself: no script, nothing from elsewhere.
// `title` says what was asked and how.
[[nodiscard]] std::string bench_html(std::string_view title,
                                     const BenchFigures& figures,
                                     const std::vector<RequestTimes>& requests);

}  // namespace galley::apps
