// Goal: roles, bytes and the prefill cut of the released models come out as published (spec
// model 1.3, 8). Method: the real configurations, and each rule of spec 1.2 broken once.
#include "model/plan.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace galley::model {
namespace {

ModelConfig v41_flash() {
  ModelConfig config;
  config.family = Family::kV41;
  config.vocabulary = 129'280;
  config.hidden = 5120;
  config.layers = 40;
  config.heads = 64;
  config.head_dim = 512;
  config.rope_dims = 64;
  config.o_groups = 8;
  config.window = 128;
  config.compress_ratios.assign(43, 0);
  for (std::size_t i = 2; i < 40; ++i) {
    config.compress_ratios[i] = i < 20 ? 2 : 1;
  }
  config.index_heads = 32;
  config.index_head_dim = 128;
  config.kv_sources = {2, 8, 14, 20};
  config.index_sources = {2, 8, 14, 20, 24, 28, 32, 36};
  config.candidate_source = 20;
  config.experts = 384;
  config.experts_per_token = 6;
  config.engram =
      EngramConfig{.layers = {1, 14}, .table_rows = {384'006'168, 384'016'682}, .head_dim = 256};
  config.draft = DraftConfig{.block = 5, .noise_token = 128'799, .target_layers = {37, 38, 39}};
  return config;
}

ModelConfig v4_flash() {
  ModelConfig config = v41_flash();
  config.family = Family::kV4;
  config.layers = 43;
  config.compress_ratios.assign(46, 0);
  for (std::size_t i = 2; i < 43; ++i) {
    config.compress_ratios[i] = i % 2 == 0 ? 4 : 128;
  }
  config.engram.reset();
  config.hash_layers = 3;
  config.draft->target_layers = {40, 41, 42};
  return config;
}

TEST(Plan, V41FlashRoles) {
  const auto plan = make_plan(v41_flash(), 3);
  ASSERT_TRUE(plan) << to_string(plan.error());
  std::string roles;
  for (const LayerPlan& layer : plan->layers) {
    roles += name(layer.role).substr(0, 3);
    roles += ' ';
  }
  std::string want =
      "win win ful reu reu reu reu reu ful reu reu reu reu reu ful reu reu reu reu reu ful reu reu "
      "reu ";
  for (int i = 0; i < 4; ++i) {
    want += "rei reu reu reu ";
  }
  EXPECT_EQ(roles, want);
  EXPECT_EQ(plan->cut, 20);
  EXPECT_EQ(plan->keep, 140);
  EXPECT_TRUE(plan->layers[20].candidate_source);
  EXPECT_TRUE(plan->layers[24].masked_by_candidates);
  EXPECT_FALSE(plan->layers[20].masked_by_candidates);
  EXPECT_EQ(plan->layers[27].kv_source, 20);
  EXPECT_EQ(plan->layers[27].list_source, 24);
  EXPECT_EQ(plan->layers[7].list_source, 2);
  EXPECT_FALSE(plan->layers[19].above_cut);
  EXPECT_TRUE(plan->layers[20].above_cut);
}

TEST(Plan, V41FlashBytes) {
  const auto plan = make_plan(v41_flash(), 3);
  ASSERT_TRUE(plan);
  const CacheLayout& cache = plan->cache;
  EXPECT_EQ(cache.block_bytes, 113'920U);   // 890 B a token
  EXPECT_EQ(cache.block_stride, 114'048U);  // 891 B a token
  ASSERT_EQ(cache.sources.size(), 4U);
  EXPECT_EQ(cache.sources[0].bytes, 22'784U);
  EXPECT_EQ(cache.sources[3].bytes, 45'568U);
  EXPECT_EQ(cache.sources[3].offset, 3U * 22'784U);
  EXPECT_EQ(cache.ring_rows, 134);
  EXPECT_EQ(cache.ring_bytes, 70'752U);
  EXPECT_EQ(cache.state_bytes, 1'415'040U);
  EXPECT_EQ(cache.rebuilt_bytes, 1'627'296U);
  EXPECT_EQ(cache.raw_bytes, 86'016U);
}

TEST(Plan, V4FlashBytes) {
  const auto plan = make_plan(v4_flash(), 3);
  ASSERT_TRUE(plan) << to_string(plan.error());
  EXPECT_EQ(plan->cut, -1);
  EXPECT_EQ(plan->cache.window_row.bytes(), 584U);
  // 21 * (584 + 68) / 4 + 20 * 584 / 128 bytes a token, times 128.
  EXPECT_EQ(plan->cache.block_bytes, 21U * 32U * (584U + 68U) + 20U * 584U);
  EXPECT_TRUE(plan->layers[2].hash_routing);
  EXPECT_FALSE(plan->layers[3].hash_routing);
  EXPECT_EQ(plan->layers[3].role, LayerRole::kHca);
  EXPECT_EQ(plan->layers[42].role, LayerRole::kCsa);
}

TEST(Plan, FingerprintFollowsWhatBlocksMean) {
  const auto base = make_plan(v41_flash(), 3);
  ModelConfig other = v41_flash();
  other.expert_intermediate = 1;
  EXPECT_EQ(make_plan(other, 0)->fingerprint, base->fingerprint);
  other = v41_flash();
  other.window = 64;
  EXPECT_NE(make_plan(other, 3)->fingerprint, base->fingerprint);
  EXPECT_EQ(base->fingerprint.size(), 32U);
}

TEST(Plan, NamesTheBrokenRule) {
  struct Row {
    void (*edit)(ModelConfig&);
    const char* where;
  };
  const Row rows[] = {
      {[](ModelConfig& c) { c.compress_ratios.resize(39); }, "compress_ratios"},
      {[](ModelConfig& c) { c.compress_ratios[41] = 1; }, "compress_ratios[41]"},
      {[](ModelConfig& c) { c.compress_ratios[5] = 4; }, "compress_ratios[5]"},
      {[](ModelConfig& c) { c.kv_sources = {8, 14, 20}; }, "kv_source_layer_ids"},
      {[](ModelConfig& c) { c.kv_sources = {2, 8, 14}; }, "kv_source_layer_ids"},
      {[](ModelConfig& c) { c.kv_sources = {0, 2, 8, 14, 20}; }, "kv_source_layer_ids[0]"},
      {[](ModelConfig& c) { c.index_sources = {2, 8, 20}; }, "index_source_layer_ids"},
      {[](ModelConfig& c) { c.candidate_source = 24; }, "candidate_source_layer_id"},
      {[](ModelConfig& c) { c.engram->layers = {1, 21}; }, "engram_layer_ids"},
      {[](ModelConfig& c) { c.engram->table_rows.pop_back(); }, "engram_num_embeddings"},
      {[](ModelConfig& c) { c.draft->target_layers = {19, 20}; }, "dspark_target_layer_ids"},
      {[](ModelConfig& c) { c.window = 129; }, "sliding_window"},
      {[](ModelConfig& c) { c.o_groups = 7; }, "o_groups"},
  };
  for (const Row& row : rows) {
    ModelConfig config = v41_flash();
    row.edit(config);
    const auto plan = make_plan(config, 3);
    ASSERT_FALSE(plan) << row.where;
    EXPECT_EQ(plan.error().where, row.where) << plan.error().what;
  }
}

}  // namespace
}  // namespace galley::model
