#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fmt/core.h>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/pack_folder.h"
#include "apps/progress_bar.h"
#include "base/real_clock.h"
#include "model/checkpoint.h"
#include "model/pack_file.h"
#include "model/packing.h"

namespace galley::apps {
namespace {

std::atomic<bool> stopped = false;  // written by a signal handler
static_assert(std::atomic<bool>::is_always_lock_free);

// What would end the process ends the writing instead, so that half a file is removed; a second
// signal ends the process at once.
void catch_signals() {
  struct sigaction action{};
  action.sa_handler = [](int) { stopped = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    sigaction(signal, &action, nullptr);
  }
}

Result<void> pack(const std::string& directory) {
  const RealClock clock;
  const TimeNs start = clock.now();
  GALLEY_TRY(const std::filesystem::path folder, pack_folder());
  GALLEY_TRY(const model::Checkpoint checkpoint, model::Checkpoint::open(directory));
  GALLEY_TRY(model::ModelWeights weights, model::bind_weights(checkpoint));
  const std::vector<kernels::Weight*> matrices = model::product_matrices(weights);
  const std::string key = checkpoint.fingerprint();
  const std::filesystem::path path = model::pack_file_path(folder, key);
  if (const auto there = model::map_pack_file(path, key, matrices)) {
    fmt::print("{}: is there already, {} bytes\n", path.string(), there->bytes().size());
    return {};
  } else if (there.error().code == Code::kCorruption) {
    fmt::print(stderr, "{} {}; it is made anew\n", path.string(), there.error().what);
  }
  catch_signals();
  ProgressBar bar;
  GALLEY_TRY(
      const std::uint64_t bytes,
      model::write_pack_file(path, key, matrices, [&](std::uint64_t done, std::uint64_t total) {
        bar.show(done, total);
        return !stopped;
      }));
  fmt::print("{}: {} bytes, {:.1f} seconds\n", path.string(), bytes,
             std::chrono::duration<double>(clock.now() - start).count());
  return {};
}

}  // namespace

void add_model_pack(CLI::App& model, int& exit_code) {
  const auto directory = std::make_shared<std::string>();
  CLI::App* const command = model.add_subcommand(
      "pack",
      fmt::format(
          "Lays the matrices of a checkpoint out as products read them, in a file that `serve`, "
          "`chat` and `eval` then map: answers of a model that is too large to be packed while it "
          "is loaded come faster. The file is about as large as the checkpoint without engram "
          "tables and lies in {}, as KEY.galleypack; a checkpoint that is changed needs another. "
          "Nothing removes old ones: delete files there as you like.",
          kPackFolderHelp));
  command->add_option("DIR", *directory, "Folder of a checkpoint.")->required();
  command->callback([directory, &exit_code] {
    if (const auto done = pack(*directory); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
