// Goal: the released configurations are read, and every field out of range is named. Method: edits
// of a golden config.
#include "model/config.h"

#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

namespace galley::model {
namespace {

nlohmann::json golden(const std::string& family) {
  std::ifstream in(std::string(GALLEY_TESTS_DIR) + "/golden/" + family + "/config.json");
  return nlohmann::json::parse(in);
}

TEST(Config, ReadsBothFamilies) {
  const auto v41 = parse_config(golden("v41").dump());
  ASSERT_TRUE(v41) << to_string(v41.error());
  EXPECT_EQ(v41->family, Family::kV41);
  EXPECT_EQ(v41->quant_block, 32);
  EXPECT_EQ(v41->engram->table_rows[1], 834);
  EXPECT_EQ(v41->vision->tokens_max, 40);
  EXPECT_EQ(v41->draft->experts, 4);
  EXPECT_EQ(*v41->image_token, 254);
  const auto v4 = parse_config(golden("v4").dump());
  ASSERT_TRUE(v4) << to_string(v4.error());
  EXPECT_EQ(v4->family, Family::kV4);
  EXPECT_EQ(v4->hash_layers, 3);
  EXPECT_EQ(v4->draft->experts, 8);  // absent: as the backbone
  EXPECT_FALSE(v4->engram);
}

TEST(Config, NamesTheFieldThatIsWrong) {
  struct Row {
    const char* pointer;
    nlohmann::json value;
    const char* where;
  };
  const Row rows[] = {
      {"/text_config/hidden_size", 0, "text_config.hidden_size"},
      {"/text_config/hidden_size", "64", "text_config.hidden_size"},
      {"/text_config/hidden_size", 1e30, "text_config.hidden_size"},
      {"/text_config/compress_ratios/3", -2, "text_config.compress_ratios[3]"},
      {"/text_config/rms_norm_eps", 2.0, "text_config.rms_norm_eps"},
      {"/text_config/rope_scaling/rope_type", "linear", "text_config.rope_scaling.rope_type"},
      {"/text_config/rope_scaling", 3, "text_config.rope_scaling"},
      {"/text_config/scoring_func", "softmax", "text_config.scoring_func"},
      {"/text_config/engram_num_embeddings/0", 0, "text_config.engram_num_embeddings[0]"},
      {"/quantization_config/weight_block_size", nlohmann::json::array({32, 64}),
       "quantization_config.weight_block_size"},
      {"/vision_config/num_attention_heads", 3, "vision_config.hidden_size"},
      {"/bos_token_id", 256, "bos_token_id"},
      {"/eos_token_id", 256, "eos_token_id"},
      {"/image_token_id", 256, "image_token_id"},
      {"/model_type", "llama", "model_type"},
  };
  for (const Row& row : rows) {
    nlohmann::json config = golden("v41");
    config[nlohmann::json::json_pointer(row.pointer)] = row.value;
    const auto parsed = parse_config(config.dump());
    ASSERT_FALSE(parsed) << row.pointer;
    EXPECT_EQ(parsed.error().where, row.where) << to_string(parsed.error());
  }
  nlohmann::json unnormalised = golden("v4");
  unnormalised["norm_topk_prob"] = false;
  const auto refused = parse_config(unnormalised.dump());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "norm_topk_prob");
  for (const char* const missing : {"vocab_size", "head_dim", "kv_source_layer_ids"}) {
    nlohmann::json config = golden("v41");
    config["text_config"].erase(missing);
    const auto parsed = parse_config(config.dump());
    ASSERT_FALSE(parsed) << missing;
    EXPECT_EQ(parsed.error().where, std::string("text_config.") + missing);
  }
}

// V4-Vision has flat keys; what is absent is as released (spec model 10.5).
TEST(Config, VisionOfV4) {
  nlohmann::json config = golden("v4");
  EXPECT_FALSE(parse_config(config.dump())->vision);
  config["vision_n_layers"] = 0;
  EXPECT_FALSE(parse_config(config.dump())->vision);
  config["vision_n_layers"] = 27;
  config["vision_dim"] = 512;
  const auto parsed = parse_config(config.dump());
  ASSERT_TRUE(parsed) << to_string(parsed.error());
  ASSERT_TRUE(parsed->vision);
  const VisionConfig& vision = *parsed->vision;
  EXPECT_EQ(vision.layers, 27);
  EXPECT_EQ(vision.hidden, 512);
  EXPECT_EQ(vision.heads, 16);
  EXPECT_EQ(vision.intermediate, 2816);
  EXPECT_EQ(vision.patch, 14);
  EXPECT_EQ(vision.rope_theta, 10'000);
  EXPECT_EQ(vision.downsample, 3);
  EXPECT_EQ(vision.tokens_max, 384);
  EXPECT_EQ(vision.pixels_min, 147'456);
  EXPECT_EQ(vision.ratio_max, 8);
  EXPECT_EQ(vision.layout, ImageLayout::kRowPairs);
  EXPECT_TRUE(parsed->image_routing());
  config["vision_max_wh_ratio"] = nullptr;
  EXPECT_EQ(parse_config(config.dump())->vision->ratio_max, 0);
  config["vision_max_n_token"] = 11;
  const auto refused = parse_config(config.dump());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "vision_max_n_token");
}

TEST(Config, RatioLimitOfV41) {
  nlohmann::json config = golden("v41");
  EXPECT_EQ(parse_config(config.dump())->vision->ratio_max, 0);
  EXPECT_EQ(parse_config(config.dump())->vision->layout, ImageLayout::kRows);
  config["vision_config"]["max_wh_ratio"] = 5;
  EXPECT_EQ(parse_config(config.dump())->vision->ratio_max, 5);
}

TEST(Config, RefusesWhatIsNoConfig) {
  for (const std::string text : {"", "[]", "nonsense", "{\"model_type\":"}) {
    EXPECT_FALSE(parse_config(text));
  }
  EXPECT_FALSE(parse_config(std::string(100'000, '[')));
  EXPECT_FALSE(parse_config(std::string(kConfigBytesMax + 1, ' ')));
}

}  // namespace
}  // namespace galley::model
