#include <csignal>
#include <cstdio>
#include <new>
#include <system_error>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "apps/input.h"
#include "base/standard_files.h"

int main(int argc, char** argv) {
  using namespace galley::apps;
  galley::open_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a file too large for the shell's limit is an error of write()
  int exit_code = 0;
  CLI::App galley("Galley serves models of the DeepSeek-V4 / V4.1 family.", "galley");
  galley.set_version_flag("--version", "galley " GALLEY_VERSION);
  need_subcommand(galley);
  add_serve(galley, exit_code);
  add_chat(galley, exit_code);
  add_run(galley, exit_code);
  add_bench(galley, exit_code);
  add_keys(galley, exit_code);
  add_cache(galley, exit_code);
  add_config(galley, exit_code);
  add_doctor(galley, exit_code);
  add_model(galley, exit_code);
  CLI::App* plan =
      galley.add_subcommand("plan", "Simulates what Galley does, with its real parts.");
  need_subcommand(*plan);
  CLI::App* sim = plan->add_subcommand("sim", "Model checks: random histories, every one checked.");
  need_subcommand(*sim);
  add_plan_sim_engine(*sim, exit_code);
  add_plan_sim_store(*sim, exit_code);
  CLI::App* recipe =
      galley.add_subcommand("recipe", "What the model really sees: prompts, tokens, replies.");
  need_subcommand(*recipe);
  add_recipe_render(*recipe, exit_code);
  add_recipe_tokenize(*recipe, exit_code);
  add_recipe_detokenize(*recipe, exit_code);
  add_recipe_parse(*recipe, exit_code);
  add_recipe_check(*recipe, exit_code);
  try {
    galley.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return galley.exit(error) == 0 ? 0 : kExitUsage;
  } catch (const std::bad_alloc&) {
    return report({.code = galley::Code::kUnavailable, .what = "out of memory"});
  } catch (const std::system_error& error) {
    // fmt: a full disk or a closed pipe behind stdout; else a thread that cannot be started.
    const bool thread = error.code() == std::errc::resource_unavailable_try_again;
    return report({.code = galley::Code::kUnavailable,
                   .what = error.what(),
                   .where = thread ? "starting a thread" : "stdout"});
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return report(
        {.code = galley::Code::kUnavailable, .what = "cannot be written", .where = "stdout"});
  }
  return exit_code;
}
