#include "apps/model_source.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <utility>

#include "apps/doctor_machine.h"
#include "apps/pack_folder.h"
#include "apps/tokenizer_choice.h"
#include "base/cpu_count.h"
#include "base/entropy.h"
#include "kernels/isa.h"
#include "model/network.h"

namespace galley::apps {
namespace {

namespace fs = std::filesystem;

Result<std::string> find_tokenizer(const fs::path& directory, const std::string& named) {
  if (!named.empty()) {
    return named;
  }
  std::error_code error;
  const fs::path own = directory / "tokenizer.json";
  if (!fs::exists(own, error)) {
    return fail(Code::kNotFound, "has no tokenizer.json, and `tokenizer` names none",
                directory.string());
  }
  return own.string();
}

// "models/mini/" and "." have names too.
std::string folder_name(const fs::path& directory) {
  std::error_code error;
  const fs::path whole = fs::canonical(directory, error);
  return whole.filename().empty() ? "model" : whole.filename().string();
}

PackedMatrices describe(const model::PackedWeights& packed, const std::string& directory) {
  PackedMatrices out{.form = packed.form,
                     .bytes = packed.bytes,
                     .file = packed.file.string(),
                     .refused = packed.refused,
                     .hint = {}};
  if (packed.form == model::PackedForm::kNone && packed.bytes > 0) {
    out.hint = "galley model pack " + directory;
  }
  return out;
}

}  // namespace

Result<LoadedModel> load_model(const std::string& directory, const std::string& tokenizer) {
  LoadedModel model;
  GALLEY_TRY(model.isa, kernels::choose_isa(kernels::wanted_isa()));
  model.device = kernels::create_cpu_device(cpu_count(), model.isa);
  GALLEY_TRY(model.network, model::Network::load(directory, *model.device, {},
                                                 pack_folder().value_or(fs::path())));
  model.packed = describe(model.network->packed(), directory);
  GALLEY_TRY(model.tokenizer_path, find_tokenizer(directory, tokenizer));
  GALLEY_TRY(model.tokenizer, choose_tokenizer(model.tokenizer_path));
  model.name = folder_name(directory);
  model.version = model.network->plan().config.family == model::Family::kV41
                      ? recipe::ModelVersion::kV41
                      : recipe::ModelVersion::kV4;
  return model;
}

Result<std::unique_ptr<engine::EngineSource>> make_engine(LoadedModel& model,
                                                          engine::EngineOptions options,
                                                          const Clock& clock) {
  options.name = model.name;
  options.seed = entropy_seed();
  if (const double bytes = read_memory().total_bytes; bytes > 0) {
    options.memory = Bytes(static_cast<std::uint64_t>(bytes));
  }
  options.store.weights = model.network->checkpoint().fingerprint();
  options.store.arithmetic = arithmetic_of(model.network->numerics(), model.isa);
  return engine::EngineSource::create(std::move(model.network), model.tokenizer, clock,
                                      std::move(options));
}

Result<std::unique_ptr<engine::SingleSequenceSource>> make_single_sequence(
    LoadedModel& model, engine::SingleSequenceOptions options, const Clock& clock) {
  options.name = model.name;
  options.seed = entropy_seed();
  return engine::SingleSequenceSource::create(std::move(model.network), model.tokenizer, clock,
                                              std::move(options));
}

std::string arithmetic_of(const model::Numerics& numerics, kernels::Isa isa) {
  return fmt::format("{} {} kv {} bf16 {} activations {}", kernels::isa_name(isa),
                     kernels::kArithmetic, numerics.kv_quantise, numerics.bf16,
                     numerics.activation_quantise);
}

void report_packed(const PackedMatrices& packed) {
  if (!packed.refused.empty()) {
    fmt::print(stderr, "galley: {} is not used: {}\n", packed.file, packed.refused);
  }
  if (!packed.hint.empty()) {
    fmt::print(stderr, "galley: `{}` once makes every answer of this model faster\n", packed.hint);
  }
}

}  // namespace galley::apps
