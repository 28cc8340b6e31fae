#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "engine/engine_source.h"
#include "engine/single_sequence.h"
#include "kernels/device.h"
#include "kernels/isa.h"
#include "model/network.h"
#include "model/packing.h"
#include "recipe/conversation.h"
#include "recipe/tokenizer.h"

// A checkpoint, ready to answer: what `serve --model`, `chat` and `run` share.
namespace galley::apps {

// Where its matrices lie as products read them (model/packing.h).
struct PackedMatrices {
  model::PackedForm form{};
  std::size_t bytes{};
  std::string file;     // the pack file, there or not
  std::string refused;  // why it is not used although there is one; else empty
  std::string hint;     // a command that makes the model faster; empty: there is none
};

struct LoadedModel {
  std::string name;  // of its folder
  recipe::ModelVersion version{};
  std::string tokenizer_path;
  std::shared_ptr<const recipe::Tokenizer> tokenizer;  // shared with the codec
  kernels::Isa isa{};                                  // of the kernels that compute it
  PackedMatrices packed;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<model::Network> network;  // until a source takes it; uses the device
};

// The tokenizer is the one named, else the checkpoint's own; a built-in one would only make
// rubbish.
[[nodiscard]] Result<LoadedModel> load_model(const std::string& directory,
                                             const std::string& tokenizer);

// What answers with it: many requests at once, or, to measure ways of computing the same, one. The
// name and the seed of `options` are filled in. Both take the model's network and use its device;
// model and `clock` outlive them.
[[nodiscard]] Result<std::unique_ptr<engine::EngineSource>> make_engine(
    LoadedModel& model, engine::EngineOptions options, const Clock& clock);
[[nodiscard]] Result<std::unique_ptr<engine::SingleSequenceSource>> make_single_sequence(
    LoadedModel& model, engine::SingleSequenceOptions options, const Clock& clock);

// What the bits of a model's blocks depend on beside tokens, weights and layout.
[[nodiscard]] std::string arithmetic_of(const model::Numerics& numerics, kernels::Isa isa);

// What somebody at a terminal should know of them, on standard error: why a pack file is not used,
// and how to make one. Mostly nothing.
void report_packed(const PackedMatrices& packed);

}  // namespace galley::apps
