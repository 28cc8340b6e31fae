#pragma once

#include <CLI/CLI.hpp>

// The subcommands of `galley`, one file each: they read flags, wire modules together and print.
// Each adds itself to its parent and, when it runs, sets `exit_code`.
namespace galley::apps {

inline constexpr int kExitFailure = 1;  // it was tried and did not work
inline constexpr int kExitUsage = 2;    // it was not tried: flags or configuration are wrong

// As CLI11's require_subcommand(1), but a word that is no subcommand is named instead of missed.
inline void need_subcommand(CLI::App& parent) {
  parent.require_subcommand(0, 1);
  parent.callback([&parent] {
    if (parent.get_subcommands().empty()) {
      throw CLI::RequiredError::Subcommand(1);
    }
  });
}

void add_serve(CLI::App& galley, int& exit_code);
void add_chat(CLI::App& galley, int& exit_code);
void add_run(CLI::App& galley, int& exit_code);
void add_bench(CLI::App& galley, int& exit_code);
void add_model(CLI::App& galley, int& exit_code);
void add_model_inspect(CLI::App& model, int& exit_code);
void add_model_eval(CLI::App& model, int& exit_code);
void add_model_pack(CLI::App& model, int& exit_code);
void add_model_synth(CLI::App& model, int& exit_code);
void add_keys(CLI::App& galley, int& exit_code);
void add_cache(CLI::App& galley, int& exit_code);
void add_cache_explain(CLI::App& cache, int& exit_code);
void add_config(CLI::App& galley, int& exit_code);
void add_doctor(CLI::App& galley, int& exit_code);
void add_plan_sim_engine(CLI::App& sim, int& exit_code);
void add_plan_sim_store(CLI::App& sim, int& exit_code);
void add_recipe_render(CLI::App& recipe, int& exit_code);
void add_recipe_tokenize(CLI::App& recipe, int& exit_code);
void add_recipe_detokenize(CLI::App& recipe, int& exit_code);
void add_recipe_parse(CLI::App& recipe, int& exit_code);
void add_recipe_check(CLI::App& recipe, int& exit_code);

}  // namespace galley::apps
