// Goal: a checkpoint means the same under every naming, and a wrong one is refused whole with file,
// tensor and expectation. Method: the golden checkpoints, renamed or bent in one place.
#include "model/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "kernels/formats.h"
#include "model/checkpoint_for_test.h"
#include "model/network.h"

namespace galley::model {
namespace {

using Tensor = CheckpointForTest::Tensor;

constexpr int kExperts = 8;

std::vector<std::int32_t> prompt() {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 40; ++i) {
    tokens.push_back((i * 37 + 11) % 250);
  }
  return tokens;
}

struct Run {
  std::string fingerprint;
  std::string roles;
  std::vector<float> logits;
  std::vector<std::int32_t> drafts;
};

Run run(const std::filesystem::path& folder) {
  const auto device = kernels::create_cpu_device(1);
  const auto network = Network::load(folder, *device, Numerics{});
  EXPECT_TRUE(network) << to_string(network.error());
  if (!network) {
    return {};
  }
  Run out;
  out.fingerprint = (*network)->plan().fingerprint;
  for (const LayerPlan& layer : (*network)->plan().layers) {
    out.roles += std::string(name(layer.role)) + " ";
  }
  const auto sequence = (*network)->new_sequence();
  const std::vector<std::int32_t> tokens = prompt();
  const SequenceRows part{.sequence = sequence.get(), .tokens = tokens};
  const ForwardResult result = (*network)->forward({&part, 1}, {}).value();
  out.logits = result.logits;
  (*network)->draft_context(*sequence, result.features, 0);
  out.drafts = (*network)->draft(*sequence, 7).tokens;
  return out;
}

void expect_same(const Run& a, const Run& b) {
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.roles, b.roles);
  EXPECT_EQ(a.drafts, b.drafts);
  ASSERT_EQ(a.logits.size(), b.logits.size());
  ASSERT_FALSE(a.logits.empty());
  EXPECT_EQ(std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)), 0);
}

std::filesystem::path golden_folder(const std::string& family) {
  return std::filesystem::path(GALLEY_TESTS_DIR) / "golden" / family;
}

// Moves the first `from` in a name; says whether it was there.
bool replace(std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) {
    return false;
  }
  text.replace(at, from.size(), to);
  return true;
}

// Released name -> what transformers calls it in V4, experts left out. Written from the module side
// (one rule a module) so that it does not repeat the table under test.
std::string transformers_v4_name(std::string name) {
  if (name == "embed.weight" || name == "head.weight" || name == "norm.weight") {
    return name == "head.weight"   ? "lm_head.weight"
           : name == "norm.weight" ? "model.norm.weight"
                                   : "model.embed_tokens.weight";
  }
  replace(name, "hc_head_", "hc_head.hc_");
  replace(name, ".attn_norm.", ".input_layernorm.");
  replace(name, ".ffn_norm.", ".post_attention_layernorm.");
  replace(name, ".hc_attn_", ".attn_hc.");
  replace(name, ".hc_ffn_", ".ffn_hc.");
  if (replace(name, ".attn.indexer.compressor.", ".self_attn.compressor.indexer.") ||
      replace(name, ".attn.compressor.", ".self_attn.compressor.")) {
    replace(name, ".wkv.", ".kv_proj.");
    replace(name, ".wgate.", ".gate_proj.");
    replace(name, ".ape", ".position_bias");
    replace(name, ".norm.", ".kv_norm.");
  } else if (replace(name, ".attn.indexer.", ".self_attn.compressor.indexer.")) {
    replace(name, ".wq_b.", ".q_b_proj.");
    replace(name, ".weights_proj.", ".scorer.weights_proj.");
  } else if (replace(name, ".attn.", ".self_attn.")) {
    for (const auto& [from, to] :
         {std::pair{".wq_a.", ".q_a_proj."}, std::pair{".q_norm.", ".q_a_norm."},
          std::pair{".wq_b.", ".q_b_proj."}, std::pair{".wkv.", ".kv_proj."},
          std::pair{".wo_a.", ".o_a_proj."}, std::pair{".wo_b.", ".o_b_proj."},
          std::pair{".attn_sink", ".sinks"}}) {
      replace(name, from, to);
    }
  } else if (replace(name, ".ffn.", ".mlp.")) {
    replace(name, ".gate.bias", ".gate.e_score_correction_bias");
    replace(name, ".shared_experts.w1.", ".shared_experts.gate_proj.");
    replace(name, ".shared_experts.w2.", ".shared_experts.down_proj.");
    replace(name, ".shared_experts.w3.", ".shared_experts.up_proj.");
  }
  if (name.ends_with("_proj.scale")) {
    replace(name, "_proj.scale", "_proj.weight_scale_inv");
  }
  return "model." + name;
}

// Takes the experts below `prefix` out and gives back those of each of `matrices` one after the
// other, expert by expert: [experts, matrices * rows, columns].
Tensor fuse(CheckpointForTest& checkpoint,
            const std::string& prefix,
            int experts,
            const std::vector<std::string>& matrices,
            const std::string& suffix) {
  Tensor out;
  for (int e = 0; e < experts; ++e) {
    for (const std::string& matrix : matrices) {
      auto node =
          checkpoint.tensors.extract(fmt::format("{}experts.{}.{}{}", prefix, e, matrix, suffix));
      EXPECT_FALSE(node.empty());
      const Tensor& one = node.mapped();
      out.dtype = one.dtype;
      out.shape = {experts, std::ssize(matrices) * one.shape[0], one.shape[1]};
      out.bytes += one.bytes;
    }
  }
  return out;
}

TEST(CheckpointNames, TransformersV4IsTheSameModel) {
  CheckpointForTest checkpoint = CheckpointForTest::golden("v4");
  for (int layer = 0; layer < 5; ++layer) {
    const std::string from = fmt::format("layers.{}.ffn.", layer);
    const std::string to = fmt::format("model.layers.{}.mlp.experts.", layer);
    for (const auto& [suffix, theirs] : {std::pair{".weight", ""}, {".scale", "_scale_inv"}}) {
      checkpoint.tensors[to + "gate_up_proj" + theirs] =
          fuse(checkpoint, from, kExperts, {"w1", "w3"}, suffix);
      checkpoint.tensors[to + "down_proj" + theirs] =
          fuse(checkpoint, from, kExperts, {"w2"}, suffix);
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (!name.starts_with("model.") && !name.starts_with("mtp.")) {
      names.push_back(name);
    }
  }
  for (const std::string& name : names) {
    checkpoint.rename(name, transformers_v4_name(name));
  }
  ASSERT_TRUE(checkpoint.tensors.contains(
      "model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight"));
  const FolderForTest folder;
  checkpoint.write(folder.path());
  const auto problems = Checkpoint::verify(folder.path());
  ASSERT_TRUE(problems) << to_string(problems.error());
  EXPECT_TRUE(problems->empty()) << problems->front().where << " " << problems->front().what;
  expect_same(run(folder.path()), run(golden_folder("v4")));
}

TEST(CheckpointNames, TransformersV41IsTheSameModel) {
  CheckpointForTest checkpoint = CheckpointForTest::golden("v41");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    names.push_back(name);
  }
  for (const std::string& name : names) {
    checkpoint.rename(name, name == "head.weight" ? "lm_head.weight" : "model." + name);
  }
  const FolderForTest folder;
  checkpoint.write(folder.path());
  expect_same(run(folder.path()), run(golden_folder("v41")));
}

// [experts, inputs, outputs] in bfloat16, exact for FP4 codes with power-of-two scales.
Tensor widen_and_transpose(const Tensor& codes, const Tensor& scales) {
  const auto experts = static_cast<std::size_t>(codes.shape[0]);
  const auto rows = static_cast<std::size_t>(codes.shape[1]);
  const std::size_t columns = 2 * static_cast<std::size_t>(codes.shape[2]);
  Tensor out{"BF16",
             {codes.shape[0], static_cast<std::int64_t>(columns), codes.shape[1]},
             std::string(experts * rows * columns * 2, '\0')};
  for (std::size_t e = 0; e < experts; ++e) {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        const std::size_t at = (e * rows + r) * columns + c;
        const auto pair = static_cast<std::uint8_t>(codes.bytes[at / 2]);
        const auto code = static_cast<std::uint8_t>(c % 2 == 0 ? pair & 15U : pair >> 4U);
        const auto scale = static_cast<std::uint8_t>(scales.bytes[at / 32]);
        const std::uint16_t value =
            kernels::to_bf16(kernels::from_e2m1(code) * kernels::from_e8m0(scale));
        std::memcpy(out.bytes.data() + ((e * columns + c) * rows + r) * 2, &value, 2);
      }
    }
  }
  return out;
}

TEST(CheckpointNames, NemoV41IsTheSameModel) {
  CheckpointForTest checkpoint = CheckpointForTest::golden("v41");
  for (int block = 0; block < 12; ++block) {
    const std::string prefix =
        block < 9 ? fmt::format("layers.{}.ffn.", block) : fmt::format("mtp.{}.ffn.", block - 9);
    const int experts = block < 9 ? kExperts : 4;
    for (const auto& [theirs, ours] :
         {std::pair{"gate_and_up_projs", std::vector<std::string>{"w1", "w3"}},
          std::pair{"down_projs", std::vector<std::string>{"w2"}}}) {
      const Tensor codes = fuse(checkpoint, prefix, experts, ours, ".weight");
      const Tensor scales = fuse(checkpoint, prefix, experts, ours, ".scale");
      checkpoint.tensors["model." + prefix + "experts." + theirs] =
          widen_and_transpose(codes, scales);
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    names.push_back(name);
  }
  for (const std::string& name : names) {
    if (name.starts_with("model.")) {
      continue;
    }
    std::string theirs = name;
    replace(theirs, "embed.weight", "embed_tokens.weight");
    if (theirs.find("engram") != std::string::npos || theirs.find("markov") != std::string::npos) {
      theirs = name;
    }
    replace(theirs, ".hc_attn_", ".attn_hc.");
    replace(theirs, ".hc_ffn_", ".ffn_hc.");
    replace(theirs, ".attn.attn_sink", ".attn.sinks_param.weight");
    replace(theirs, ".gate.bias", ".gate.e_score_correction_bias");
    replace(theirs, ".gate.e_score_correction_bias_vl", ".gate.bias_vl");
    replace(theirs, ".shared_experts.w1.", ".shared_experts.gate_proj.");
    replace(theirs, ".shared_experts.w2.", ".shared_experts.down_proj.");
    replace(theirs, ".shared_experts.w3.", ".shared_experts.up_proj.");
    checkpoint.rename(name, name == "head.weight" ? "lm_head.weight" : "model." + theirs);
  }
  const FolderForTest folder;
  checkpoint.write(folder.path());
  expect_same(run(folder.path()), run(golden_folder("v41")));
  // Transposed on the way in: memory of this process, not of the page cache. Nine layers of eight
  // experts and three stages of four, three matrices of 64 x 64 in bfloat16 each.
  const Checkpoint::Sizes sizes = Checkpoint::open(folder.path()).value().sizes();
  EXPECT_EQ(sizes.copied, (std::size_t{9} * 8 + 3 * 4) * 3 * 64 * 64 * 2);
  EXPECT_EQ(Checkpoint::open(golden_folder("v41")).value().sizes().copied, 0U);
}

// ---- wrong checkpoints
// ------------------------------------------------------------------------------------------

struct BadCheckpoint {
  const char* name;
  std::function<void(CheckpointForTest&)> bend;
  const char* where;  // end of the error's place
  const char* what;   // part of its text
};

const BadCheckpoint kBadCheckpoints[] = {
    {"missing", [](auto& c) { c.tensors.erase("layers.3.attn.wkv.weight"); },
     ": layers.3.attn.wkv.weight", "is missing"},
    {"misshapen", [](auto& c) { c.tensors["norm.weight"].shape = {2, 32}; },
     "model.safetensors: norm.weight", "has shape [2, 32], want [64]"},
    {"misshapen expert",
     [](auto& c) { c.tensors["layers.1.ffn.experts.3.w2.weight"].shape = {32, 64}; },
     "model.safetensors: layers.1.ffn.experts.3.w2.weight", "has shape [32, 64], want [64, 32]"},
    {"wrong dtype", [](auto& c) { c.tensors["layers.0.attn.wq_a.weight"].dtype = "I8"; },
     "layers.0.attn.wq_a.weight", "has dtype I8"},
    {"scale shape", [](auto& c) { c.tensors["layers.0.attn.wq_a.scale"].shape = {2, 1}; },
     "layers.0.attn.wq_a.weight", "scales: has shape [2, 1], want [1, 2]"},
    {"no scale", [](auto& c) { c.tensors.erase("layers.0.attn.wq_a.scale"); },
     "layers.0.attn.wq_a.weight", "has no scales (layers.0.attn.wq_a.scale)"},
    {"scale dtype", [](auto& c) { c.tensors["layers.0.attn.wq_a.scale"].dtype = "U8"; },
     "layers.0.attn.wq_a.weight", "has scales of dtype U8, want F8_E8M0 or F32"},
    {"twice", [](auto& c) { c.tensors["model.norm.weight"] = c.tensors["norm.weight"]; },
     "model.safetensors: norm.weight", "is stored a second time"},
    {"not finite",
     [](auto& c) {
       c.tensors["layers.2.attn.q_norm.weight"].bytes.replace(0, 2, "\xc0\x7f");  // bfloat16 NaN
     },
     "layers.2.attn.q_norm.weight", "holds a value that is not finite"},
    {"fused odd",
     [](auto& c) {
       c.tensors["model.layers.0.mlp.experts.gate_up_proj"] = {"BF16", {1, 3, 1}, "123456"};
     },
     "model.layers.0.mlp.experts.gate_up_proj", "want experts of 2 equal matrices along axis 1"},
    {"transposed codes",
     [](auto& c) {
       c.tensors["model.layers.0.ffn.experts.down_projs"] = {"I8", {1, 2, 3}, "123456"};
     },
     "model.layers.0.ffn.experts.down_projs", "has dtype I8"},
    {"stages", [](auto& c) { c.tensors["mtp.7.norm.weight"] = c.tensors["norm.weight"]; },
     ": mtp.3.attn_norm.weight", "is missing"},
    {"stages without their sizes",
     [](auto& c) { c.config["text_config"].erase("dspark_block_size"); }, "dspark_block_size",
     "is missing, and the checkpoint has 3 draft stages"},
    {"token map", [](auto& c) { c.token_map.resize(1000); }, "engram_token_map.bin",
     "has 1000 bytes, want 4 for each of 256 tokens"},
    {"token map value", [](auto& c) { c.token_map[3] = '\x01'; }, "engram_token_map.bin",
     "outside the compressed vocabulary"},
    {"no token map", [](auto& c) { c.token_map.clear(); }, "engram_token_map.bin",
     "the engram hash needs it"},
    {"table too small",
     [](auto& c) {
       c.config["text_config"]["engram_num_embeddings"][0] = 100;
       for (const std::string part : {"weight", "scale"}) {
         Tensor& table = c.tensors["layers.1.engram.embed." + part];
         table.bytes.resize(table.bytes.size() / static_cast<std::size_t>(table.shape[0]) * 100);
         table.shape[0] = 100;
       }
     },
     "engram_num_embeddings[0]", "the table has 100"},
    {"architecture", [](auto& c) { c.config["model_type"] = "llama"; }, "model_type",
     "\"llama\" is not supported"},
    {"field out of range", [](auto& c) { c.config["text_config"]["hidden_size"] = -4; },
     "text_config.hidden_size", "want an integer in [1, 1048576], got -4"},
    {"too many experts", [](auto& c) { c.config["text_config"]["n_routed_experts"] = 1 << 20; },
     "config.json: n_routed_experts", "must be at most 262144"},
    {"too many primes", [](auto& c) { c.config["text_config"]["engram_n_heads"] = 1000; },
     "config.json: engram_n_heads", "must be at most 4096"},
};

TEST(Checkpoint, RefusesWholeAndSaysWhy) {
  for (const BadCheckpoint& bad : kBadCheckpoints) {
    SCOPED_TRACE(bad.name);
    CheckpointForTest checkpoint = CheckpointForTest::golden("v41");
    bad.bend(checkpoint);
    const FolderForTest folder;
    checkpoint.write(folder.path());
    const auto device = kernels::create_cpu_device(1);
    const auto network = Network::load(folder.path(), *device, Numerics{});
    ASSERT_FALSE(network);
    EXPECT_TRUE(network.error().where.ends_with(bad.where)) << to_string(network.error());
    EXPECT_NE(network.error().what.find(bad.what), std::string::npos) << to_string(network.error());
  }
}

TEST(Checkpoint, RefusesExpertIdsOutOfRange) {
  CheckpointForTest checkpoint = CheckpointForTest::golden("v4");
  checkpoint.tensors["layers.1.ffn.gate.tid2eid"].bytes[8] = kExperts;
  const FolderForTest folder;
  checkpoint.write(folder.path());
  const auto device = kernels::create_cpu_device(1);
  const auto network = Network::load(folder.path(), *device, Numerics{});
  ASSERT_FALSE(network);
  EXPECT_EQ(network.error().what, "holds an expert id outside [0, 8)");
  const auto problems = Checkpoint::verify(folder.path());
  ASSERT_TRUE(problems);
  ASSERT_EQ(problems->size(), 1U);
  EXPECT_TRUE(problems->front().where.ends_with("model.safetensors: layers.1.ffn.gate.tid2eid"));
  EXPECT_EQ(problems->front().what, "token 0 goes to expert 8, want [0, 8)");
}

TEST(Checkpoint, RefusesLyingFiles) {
  struct Row {
    const char* name;
    std::function<std::string(const CheckpointForTest&)> file;
    const char* where;
    const char* what;
  };
  const auto bent = [](auto edit) {
    return [edit](const CheckpointForTest& c) { return c.file(edit); };
  };
  const Row rows[] = {
      {"cut", [](const CheckpointForTest& c) { return c.file([](auto&) {}).substr(0, 500'000); },
       "", "data_offsets"},
      {"cut in the header",
       [](const CheckpointForTest& c) { return c.file([](auto&) {}).substr(0, 900); }, "",
       "header of"},
      {"empty", [](const CheckpointForTest&) { return std::string(); }, "model.safetensors",
       "8 bytes"},
      {"overlap", bent([](nlohmann::json& header) {
         header["layers.1.attn_norm.weight"]["data_offsets"] =
             header["layers.0.attn_norm.weight"]["data_offsets"];
       }),
       "", "overlaps another tensor"},
      {"dtype", bent([](nlohmann::json& header) { header["norm.weight"]["dtype"] = "F7"; }),
       "model.safetensors: norm.weight", "unknown dtype"},
      {"tail", [](const CheckpointForTest& c) { return c.file([](auto&) {}) + "x"; },
       "model.safetensors", "after the last tensor"},
  };
  const CheckpointForTest checkpoint = CheckpointForTest::golden("v41");
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const FolderForTest folder;
    checkpoint.write(folder.path());
    write_for_test(folder.path() / "model.safetensors", row.file(checkpoint));
    const auto opened = Checkpoint::open(folder.path());
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kCorruption);
    EXPECT_NE(opened.error().where.find("model.safetensors"), std::string::npos);
    EXPECT_TRUE(opened.error().where.ends_with(row.where)) << to_string(opened.error());
    EXPECT_NE(opened.error().what.find(row.what), std::string::npos) << to_string(opened.error());
  }
}

TEST(Checkpoint, VerifyNamesEveryDifference) {
  CheckpointForTest checkpoint = CheckpointForTest::golden("v41");
  checkpoint.tensors.erase("layers.8.attn.attn_sink");
  checkpoint.tensors["layers.0.surplus"] = {"BF16", {1}, "ab"};
  checkpoint.tensors["norm.scale"] = {"F8_E8M0", {1}, "a"};
  checkpoint.tensors["layers.4.attn.wo_b.weight"].bytes[5] = '\x7f';        // e4m3 NaN
  checkpoint.tensors["layers.5.ffn.experts.0.w1.scale"].bytes[0] = '\xff';  // e8m0 NaN
  Tensor& scale = checkpoint.tensors["layers.6.attn.wkv.scale"];
  scale = {"F32", scale.shape, std::string(4 * scale.bytes.size(), '\0')};  // zero scales
  checkpoint.tensors["mtp.1.attn_norm.weight"].shape = {64, 1};
  const FolderForTest folder;
  checkpoint.write(folder.path());
  const auto problems = Checkpoint::verify(folder.path());
  ASSERT_TRUE(problems) << to_string(problems.error());
  std::vector<std::string> lines;
  for (const Checkpoint::Problem& problem : *problems) {
    lines.push_back(problem.where + " " + problem.what);
  }
  std::ranges::sort(lines);
  const std::string file = (folder.path() / "model.safetensors").string() + ": ";
  std::vector<std::string> want = {
      folder.path().string() + ": layers.8.attn.attn_sink is missing",
      file + "layers.0.surplus is not expected",
      file + "norm.scale is not expected: no quantised weight has these scales",
      file + "layers.4.attn.wo_b.weight holds a value that is not finite",
      file + "layers.5.ffn.experts.0.w1.scale holds a value that is not finite",
      file + "layers.6.attn.wkv.scale holds a scale that is not above 0 and up to 2^119",
      file + "mtp.1.attn_norm.weight has shape [64, 1], want [64]",
  };
  std::ranges::sort(want);
  EXPECT_EQ(lines, want);
}

// What hashes lead to: the token map beside the tensors, the tables, the routes by token id.
TEST(Checkpoint, VerifyNamesWhatHashesNeed) {
  struct Case {
    const char* family;
    std::function<void(CheckpointForTest&)> bend;
    const char* where;  // end of the only problem's place
    const char* what;   // part of its text
  };
  const Case cases[] = {
      {"v41", [](auto& c) { c.token_map.clear(); }, "engram_token_map.bin",
       "the engram hash needs it"},
      {"v41", [](auto& c) { c.token_map += "more"; }, "engram_token_map.bin",
       "has 1028 bytes, want 4 for each of 256 tokens"},
      {"v41", [](auto& c) { c.token_map[4 * 7 + 3] = '\x80'; }, "engram_token_map.bin",
       "token 7 maps to"},
      {"v41", [](auto& c) { c.config["text_config"]["engram_vocab_size"] = 101; },
       "config.json: engram_num_embeddings[0]", "hashes reach row"},
      {"v4", [](auto& c) { c.tensors["layers.1.ffn.gate.tid2eid"].shape = {128, 4}; },
       "layers.1.ffn.gate.tid2eid", "has shape [128, 4], want [256, 2]"},
      {"v4", [](auto& c) { c.tensors["layers.1.ffn.gate.tid2eid"].bytes[16 * 200 + 7] = '\xff'; },
       "layers.1.ffn.gate.tid2eid", "token 200 goes to expert -"}};
  for (const Case& c : cases) {
    CheckpointForTest checkpoint = CheckpointForTest::golden(c.family);
    c.bend(checkpoint);
    const FolderForTest folder;
    checkpoint.write(folder.path());
    const auto problems = Checkpoint::verify(folder.path());
    ASSERT_TRUE(problems) << to_string(problems.error());
    ASSERT_EQ(problems->size(), 1U) << c.what;
    EXPECT_TRUE(problems->front().where.ends_with(c.where)) << problems->front().where;
    EXPECT_NE(problems->front().what.find(c.what), std::string::npos) << problems->front().what;
  }
}

// What a copy that broke off leaves, and what no reader would notice.
TEST(Checkpoint, VerifyNamesWhatACopyLost) {
  struct Case {
    std::function<void(CheckpointForTest&, nlohmann::json& index)> bend;
    const char* where;  // end of the only problem's place
    const char* what;
  };
  const Case cases[] = {
      {[](auto& c, auto&) { std::ranges::fill(c.tensors["head.weight"].bytes, '\0'); },
       "model.safetensors: head.weight", "holds nothing but zeros"},
      {[](auto& c, auto&) { c.tensors["layers.0.attn.wq_a.scale"].bytes[0] = '\xf7'; },
       "layers.0.attn.wq_a.scale", "holds a scale that is not above 0 and up to 2^119"},
      {[](auto& c, auto&) {
         std::erase_if(c.tensors, [](const auto& t) { return t.first.starts_with("mtp."); });
       },
       "config.json", "configures a drafter, and no tensor mtp.* is stored"},
      {[](auto&, auto& index) { index["layers.99.surplus"] = "model.safetensors"; },
       "model.safetensors.index.json: layers.99.surplus", "is not in model.safetensors"},
      {[](auto&, auto& index) { index.erase("norm.weight"); }, "model.safetensors: norm.weight",
       "is not in model.safetensors.index.json"}};
  for (const Case& c : cases) {
    CheckpointForTest checkpoint = CheckpointForTest::golden("v41");
    nlohmann::json files;
    for (const auto& [name, tensor] : checkpoint.tensors) {
      files[name] = "model.safetensors";
    }
    c.bend(checkpoint, files);
    const FolderForTest folder;
    checkpoint.write(folder.path());
    if (checkpoint.tensors.contains("mtp.0.attn_norm.weight")) {
      write_for_test(folder.path() / "model.safetensors.index.json",
                     nlohmann::json{{"weight_map", files}}.dump());
    }
    const auto problems = Checkpoint::verify(folder.path());
    ASSERT_TRUE(problems) << to_string(problems.error());
    ASSERT_EQ(problems->size(), 1U) << c.what;
    EXPECT_TRUE(problems->front().where.ends_with(c.where)) << problems->front().where;
    EXPECT_EQ(problems->front().what, c.what);
  }
}

TEST(Checkpoint, ReadsShardsAndRefusesAForeignPath) {
  const CheckpointForTest whole = CheckpointForTest::golden("v4");
  CheckpointForTest first = whole;
  CheckpointForTest second = whole;
  nlohmann::json index;
  for (const auto& [name, tensor] : whole.tensors) {
    const bool early = name < "layers.3";
    (early ? second : first).tensors.erase(name);
    index["weight_map"][name] = early ? "one.safetensors" : "two.safetensors";
  }
  const FolderForTest folder;
  first.write(folder.path());
  std::filesystem::rename(folder.path() / "model.safetensors", folder.path() / "one.safetensors");
  second.write(folder.path());
  std::filesystem::rename(folder.path() / "model.safetensors", folder.path() / "two.safetensors");
  write_for_test(folder.path() / "model.safetensors.index.json", index.dump());
  expect_same(run(folder.path()), run(golden_folder("v4")));

  index["weight_map"]["norm.weight"] = "../one.safetensors";
  write_for_test(folder.path() / "model.safetensors.index.json", index.dump());
  const auto opened = Checkpoint::open(folder.path());
  ASSERT_FALSE(opened);
  EXPECT_TRUE(opened.error().where.ends_with("model.safetensors.index.json: norm.weight"));

  index["weight_map"]["norm.weight"] = "absent.safetensors";
  write_for_test(folder.path() / "model.safetensors.index.json", index.dump());
  const auto absent = Checkpoint::open(folder.path());
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, Code::kNotFound) << to_string(absent.error());
}

}  // namespace
}  // namespace galley::model
