#include <fmt/core.h>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/options.h"

namespace galley::apps {

void add_config(CLI::App& galley, int& exit_code) {
  CLI::App* command = galley.add_subcommand(
      "config", "Prints every setting with its value and where that came from.");
  command->allow_extras();
  command->footer("Takes the flags of `galley serve`.");
  command->callback([command, &exit_code] {
    const auto config = load_config(command->remaining());
    if (!config) {
      report(config.error());
      exit_code = kExitUsage;
      return;
    }
    fmt::print("{}", config->table());
  });
}

}  // namespace galley::apps
