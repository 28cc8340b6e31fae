// Goal: loading reads no matrix, and engram tables stay on disk: memory does not grow with them,
// and a row that cannot be read is an error of the step, which may be tried again. Method: the
// golden V4.1 checkpoint with gigabytes of matrix or table that are a hole in the file.
#include <cstring>
#include <fmt/core.h>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/checkpoint_for_test.h"
#include "model/network.h"

namespace galley::model {
namespace {

constexpr std::int64_t kTableRows = std::int64_t{1} << 26U;  // times 66 bytes: 4.4 GB a layer
constexpr int kHeads = 2;

// Mapped file pages that are in memory, of this process.
std::int64_t resident_file_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  std::int64_t kilobytes = 0;
  while (std::getline(status, line)) {
    if (line.starts_with("RssFile:") || line.starts_with("RssShmem:")) {
      kilobytes += std::stoll(line.substr(line.find(':') + 1));
    }
  }
  return kilobytes * 1024;
}

CheckpointForTest with_large_tables() {
  CheckpointForTest checkpoint = CheckpointForTest::golden("v41");
  auto& text = checkpoint.config["text_config"];
  const std::int64_t columns = (text["engram_max_ngram_size"].get<std::int64_t>() - 1) * kHeads;
  // Primes a little above the base fill the table almost to its end, in two layers.
  text["engram_vocab_size"] = kTableRows / columns - 2000;
  for (std::size_t i = 0; i < 2; ++i) {
    text["engram_num_embeddings"][i] = kTableRows;
    const std::string prefix =
        fmt::format("layers.{}.engram.embed.", text["engram_layer_ids"][i].get<int>());
    for (const std::string part : {"weight", "scale"}) {
      CheckpointForTest::Tensor& tensor = checkpoint.tensors[prefix + part];
      tensor.shape[0] = kTableRows;
      tensor.bytes.clear();
      checkpoint.holes[prefix + part] = static_cast<std::uint64_t>(kTableRows * tensor.shape[1]);
    }
  }
  return checkpoint;
}

std::vector<std::int32_t> prompt(int length) {
  std::vector<std::int32_t> tokens;
  std::uint32_t state = 1;
  for (int i = 0; i < length; ++i) {
    state = state * 1'664'525U + 1'013'904'223U;
    tokens.push_back(static_cast<std::int32_t>((state >> 16U) % 250U));
  }
  return tokens;
}

TEST(EngramTable, MemoryDoesNotGrowWithIt) {
  const FolderForTest folder;
  with_large_tables().write(folder.path());
  const auto device = kernels::create_cpu_device(1);
  const auto network = Network::load(folder.path(), *device, Numerics{});
  ASSERT_TRUE(network) << to_string(network.error());
  const auto sequence = (*network)->new_sequence();
  const std::vector<std::int32_t> tokens = prompt(300);
  const auto feed = [&](std::size_t begin, std::size_t count) {
    const SequenceRows part{.sequence = sequence.get(),
                            .tokens = std::span(tokens).subspan(begin, count)};
    const auto result = (*network)->forward({&part, 1}, {.logits_tail = 1});
    ASSERT_TRUE(result) << to_string(result.error());
  };
  feed(0, 60);  // brings the weights in
  const std::int64_t before = resident_file_bytes();
  feed(60, 240);
  // 240 tokens read 2 * 6 rows each, almost all on pages of their own: 11 MB if they were mapped.
  EXPECT_LT(resident_file_bytes() - before, std::int64_t{1} << 20U);

  // The measurement would have seen it.
  const auto mapped = MappedFile::open(folder.path() / "model.safetensors");
  ASSERT_TRUE(mapped);
  int sum = 0;
  for (std::size_t i = 1; i <= 2000; ++i) {
    sum += static_cast<int>(mapped->bytes()[mapped->bytes().size() - i * 1'000'000]);
  }
  EXPECT_EQ(sum, 0);
  EXPECT_GT(resident_file_bytes() - before, std::int64_t{4} << 20U);
}

TEST(Loading, TouchesNoMatrix) {
  // Embedding, head and the drafter's two matrices: 3.8 GB, which is a hole in the file.
  constexpr std::int64_t kVocabulary = 12'000'000;
  CheckpointForTest checkpoint = CheckpointForTest::golden("v41");
  checkpoint.config["text_config"]["vocab_size"] = kVocabulary;
  checkpoint.token_map.assign(kVocabulary * 4, '\0');
  std::uint64_t large = 0;
  for (const std::string name : {"embed.weight", "head.weight", "mtp.2.markov_head.embed.weight",
                                 "mtp.2.markov_head.head.weight"}) {
    CheckpointForTest::Tensor& tensor = checkpoint.tensors[name];
    tensor.shape[0] = kVocabulary;
    tensor.bytes.clear();
    const auto bytes = static_cast<std::uint64_t>(kVocabulary * tensor.shape[1] * 2);
    checkpoint.holes[name] = bytes;
    large += bytes;
  }
  EXPECT_GT(large, 3'000'000'000U);
  const FolderForTest folder;
  checkpoint.write(folder.path());
  const auto device = kernels::create_cpu_device(1);
  const std::int64_t before = resident_file_bytes();
  const auto network = Network::load(folder.path(), *device, Numerics{});
  ASSERT_TRUE(network) << to_string(network.error());
  // Small tensors are widened, each once; of the matrices no byte is read, so none is read twice.
  EXPECT_LT(resident_file_bytes() - before, std::int64_t{16} << 20U);
}

TEST(EngramTable, ARowThatCannotBeReadIsAnErrorOfTheStep) {
  const FolderForTest folder;
  with_large_tables().write(folder.path());
  const std::filesystem::path file = folder.path() / "model.safetensors";
  const auto device = kernels::create_cpu_device(1);
  const auto network = Network::load(folder.path(), *device, Numerics{});
  ASSERT_TRUE(network) << to_string(network.error());
  const std::vector<std::int32_t> tokens = prompt(20);
  const auto feed = [&](Sequence& sequence) {
    const SequenceRows part{.sequence = &sequence, .tokens = tokens};
    return (*network)->forward({&part, 1}, {});
  };
  const auto whole = (*network)->new_sequence();
  const ForwardResult want = feed(*whole).value();

  const std::uintmax_t size = std::filesystem::file_size(file);
  const auto sequence = (*network)->new_sequence();
  std::filesystem::resize_file(file, size - 4'000'000'000U);  // the mapped weights lie before
  const Result<ForwardResult> failed = feed(*sequence);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::kUnavailable);
  EXPECT_EQ(failed.error().where, folder.path().string());

  std::filesystem::resize_file(file, size);
  const auto fresh = (*network)->new_sequence();
  const ForwardResult again = feed(*fresh).value();
  ASSERT_EQ(again.logits.size(), want.logits.size());
  EXPECT_EQ(
      std::memcmp(again.logits.data(), want.logits.data(), want.logits.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace galley::model
