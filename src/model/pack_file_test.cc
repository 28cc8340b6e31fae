// Goal: a pack file holds exactly what pack_matrix() makes, changes no answer, and is used only for
// the checkpoint it was made from and only whole. Method: the golden checkpoints of both families;
// files cut, flipped and forged. That nothing half-written shows is the business of
// base/new_file_test.cc.
#include "model/pack_file.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>
#include <xxhash.h>

#include "kernels/packed_weight.h"
#include "model/checkpoint_for_test.h"
#include "model/network.h"
#include "model/packing.h"

namespace galley::model {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeaderBytes = 80;
constexpr std::size_t kEntryBytes = 16;
constexpr std::size_t kChecksumAt = 64;

const PackProgress kSilent = [](std::uint64_t, std::uint64_t) { return true; };

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
T number_at(std::string_view file, std::size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(value));
  return value;
}

template <class T>
void set_number(std::string& file, std::size_t offset, T value) {
  std::memcpy(file.data() + offset, &value, sizeof(value));
}

// The checksum as docs/formats/packed_weights.md tells to compute it.
void sign(std::string& file, std::size_t matrices) {
  const std::string text =
      file.substr(0, kChecksumAt) + file.substr(kHeaderBytes, matrices * kEntryBytes);
  XXH128_canonical_t sum;
  XXH128_canonicalFromHash(&sum, XXH3_128bits(text.data(), text.size()));
  std::memcpy(file.data() + kChecksumAt, &sum, sizeof(sum));
}

class PackFile : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] Result<std::uint64_t> write(const PackProgress& progress = kSilent) const {
    return write_pack_file(path_, key_, matrices_, progress);
  }
  [[nodiscard]] Result<MappedFile> map() const { return map_pack_file(path_, key_, matrices_); }
  [[nodiscard]] bool unpacked() const {
    return std::ranges::all_of(matrices_, [](auto* matrix) { return matrix->packed == nullptr; });
  }
  [[nodiscard]] std::size_t files() const {
    std::error_code error;
    const fs::directory_iterator all(path_.parent_path(), error);
    return error ? 0U : static_cast<std::size_t>(std::distance(all, {}));
  }

  FolderForTest folder_;
  fs::path model_ = fs::path(GALLEY_TESTS_DIR) / "golden" / GetParam();
  Checkpoint checkpoint_ = Checkpoint::open(model_).value();
  ModelWeights weights_ = bind_weights(checkpoint_).value();
  std::vector<kernels::Weight*> matrices_ = product_matrices(weights_);
  std::string key_ = checkpoint_.fingerprint();
  fs::path path_ = pack_file_path(folder_.path() / "new" / "folder", key_);
};

TEST_P(PackFile, HoldsWhatPackMatrixMakes) {
  const auto missing = map();
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);

  std::uint64_t last = 0;
  std::uint64_t all = 0;
  const auto written = write([&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GT(done, last);
    last = done;
    all = total;
    EXPECT_EQ(fs::exists(path_), done == total);
    return true;
  });
  ASSERT_TRUE(written) << to_string(written.error());
  EXPECT_EQ(*written, fs::file_size(path_));
  EXPECT_EQ(last, *written);
  EXPECT_EQ(all, *written);
  EXPECT_EQ(files(), 1U);
  EXPECT_TRUE(unpacked());

  const auto mapped = map();
  ASSERT_TRUE(mapped) << to_string(mapped.error());
  const std::string file = content(path_);
  std::size_t packed = 0;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const std::size_t at = kHeaderBytes + i * kEntryBytes;
    const auto offset = number_at<std::uint64_t>(file, at);
    const std::size_t bytes = packed_bytes(*matrices_[i]);
    EXPECT_EQ(number_at<std::uint64_t>(file, at + 8), bytes);
    if (bytes == 0) {  // the router's and the compressors' matrices of V4 are F32
      EXPECT_EQ(offset, 0U);
      EXPECT_EQ(matrices_[i]->packed, nullptr);
      continue;
    }
    ++packed;
    EXPECT_EQ(offset % 64, 0U);
    EXPECT_EQ(matrices_[i]->packed, mapped->bytes().data() + offset);
    std::vector<std::byte> want(bytes);
    kernels::Weight matrix = *matrices_[i];
    pack_matrix(matrix, want.data());
    ASSERT_EQ(matrix.packed, want.data());
    EXPECT_EQ(std::memcmp(want.data(), file.data() + offset, bytes), 0) << i;
  }
  EXPECT_GT(packed, 10U);
}

// A file that another build has made is found by the checkpoint alone, so what is in it must not
// change unless kPackedLayout or kPackFileVersion does.
TEST_P(PackFile, BytesOfThisVersion) {
  ASSERT_EQ(kernels::kPackedLayout, 1U);
  ASSERT_EQ(kPackFileVersion, 1U);
  ASSERT_TRUE(write());
  const std::string file = content(path_);
  const std::map<std::string, std::uint64_t> expected{{"v4", 12635892618090698546U},
                                                      {"v41", 3727864845552866944U}};
  const std::string_view after_checksum = std::string_view(file).substr(kHeaderBytes);
  EXPECT_EQ(XXH3_64bits(after_checksum.data(), after_checksum.size()), expected.at(GetParam()));
}

TEST_P(PackFile, LogitsAreTheSame) {
  const auto device = kernels::create_cpu_device(2);
  ASSERT_TRUE(write());
  const auto logits = [&](const fs::path& directory, PackedForm form) {
    const auto network = Network::load(model_, *device, {}, directory).value();
    EXPECT_EQ(network->packed().form, form);
    EXPECT_EQ(network->packed().refused, "");
    const auto sequence = network->new_sequence();
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < 70; ++i) {
      tokens.push_back(1 + i * 7 % 200);
    }
    SequenceRows rows;
    rows.sequence = sequence.get();
    rows.tokens = tokens;
    return network->forward({&rows, 1}, {}).value().logits;
  };
  const std::vector<float> with = logits(path_.parent_path(), PackedForm::kFile);
  const std::vector<float> without = logits({}, PackedForm::kMemory);
  ASSERT_EQ(with.size(), without.size());
  ASSERT_FALSE(with.empty());
  EXPECT_EQ(std::memcmp(with.data(), without.data(), with.size() * sizeof(float)), 0);
  EXPECT_EQ(logits(folder_.path(), PackedForm::kMemory), without);  // no file there
}

TEST_P(PackFile, AFileThatIsCutIsRefused) {
  ASSERT_TRUE(write());
  const std::string file = content(path_);
  std::set<std::size_t> lengths{file.size() - 1, file.size() - 64, file.size() + 1};
  for (std::size_t length = 0; length < 200; ++length) {
    lengths.insert(length);
  }
  for (std::size_t length = 200; length < file.size(); length += file.size() / 50) {
    lengths.insert(length);
  }
  for (const std::size_t length : lengths) {
    std::string cut = file;
    cut.resize(length);
    write_for_test(path_, cut);
    const auto mapped = map();
    ASSERT_FALSE(mapped) << length;
    EXPECT_EQ(mapped.error().code, Code::kCorruption);
    EXPECT_EQ(mapped.error().where, path_.string());
    EXPECT_TRUE(unpacked());
  }
}

TEST_P(PackFile, AFlippedBitOfHeaderOrDirectoryIsRefused) {
  ASSERT_TRUE(write());
  std::string file = content(path_);
  // In place: each flip is one small write.
  std::fstream out(path_, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t at) {
    out.seekp(static_cast<std::streamoff>(at));
    out.put(file[at]);
    out.flush();
  };
  for (std::size_t at = 0; at < kHeaderBytes + matrices_.size() * kEntryBytes; ++at) {
    const char mask = static_cast<char>(1U << (at % 8));
    file[at] = static_cast<char>(file[at] ^ mask);
    put(at);
    ASSERT_FALSE(map()) << at;
    EXPECT_TRUE(unpacked());
    file[at] = static_cast<char>(file[at] ^ mask);
    put(at);
  }
  EXPECT_TRUE(map());
}

// Files whose checksum is right and which lie all the same.
TEST_P(PackFile, AForgedFileIsRefused) {
  ASSERT_TRUE(write());
  const std::string good = content(path_);
  const std::size_t count = matrices_.size();
  const auto why = [&](std::string file, std::size_t matrices) -> std::string {
    sign(file, matrices);
    write_for_test(path_, file);
    const auto mapped = map();
    return mapped ? "used" : mapped.error().what;
  };
  ASSERT_EQ(why(good, count), "used");
  const auto forged = [&](std::size_t at, auto value) {
    std::string file = good;
    set_number(file, at, value);
    return why(std::move(file), count);
  };
  EXPECT_EQ(forged(8, kPackFileVersion + 1), "has version 2 and layout 1, want 1 and 1");
  EXPECT_EQ(forged(12, kernels::kPackedLayout + 1), "has version 1 and layout 2, want 1 and 1");
  EXPECT_EQ(forged(56, std::uint64_t{count + 1}).find("has " + std::to_string(count + 1)), 0U);
  EXPECT_EQ(forged(56, ~std::uint64_t{0}).find("has 18446744073709551615 matrices"), 0U);
  std::string short_one = good.substr(0, kHeaderBytes + 20);
  set_number(short_one, 48, std::uint64_t{short_one.size()});
  EXPECT_EQ(why(short_one + std::string(count * kEntryBytes, '\0'), count),
            "has " + std::to_string(kHeaderBytes + 20 + count * kEntryBytes) + " bytes, want 100");
  write_for_test(path_, short_one);
  EXPECT_EQ(map().error().what, "ends inside its directory");

  std::size_t first = 0;
  while (number_at<std::uint64_t>(good, kHeaderBytes + first * kEntryBytes) == 0) {
    ++first;
  }
  const std::size_t entry = kHeaderBytes + first * kEntryBytes;
  const auto offset = number_at<std::uint64_t>(good, entry);
  for (const std::uint64_t bad :
       {std::uint64_t{0}, std::uint64_t{64}, offset + 1, offset + 32, std::uint64_t{good.size()},
        (std::uint64_t{good.size()} + 63) / 64 * 64, std::uint64_t{1} << 40U, ~std::uint64_t{63}}) {
    EXPECT_NE(forged(entry, bad).find("where it cannot be"), std::string::npos) << bad;
  }
  const auto bytes = number_at<std::uint64_t>(good, entry + 8);
  for (const std::uint64_t bad : {std::uint64_t{0}, bytes - 64, bytes + 64, ~std::uint64_t{63}}) {
    EXPECT_NE(forged(entry + 8, bad).find("where it cannot be"), std::string::npos) << bad;
  }
}

TEST_P(PackFile, ARefusedFileIsReportedAndReplaced) {
  const auto device = kernels::create_cpu_device(1);
  fs::create_directories(path_.parent_path());
  write_for_test(path_, "rubbish");
  const auto network = Network::load(model_, *device, {}, path_.parent_path()).value();
  EXPECT_EQ(network->packed().form, PackedForm::kMemory);
  EXPECT_EQ(network->packed().file, path_);
  EXPECT_EQ(network->packed().refused, "has 7 bytes, less than a header");
  ASSERT_TRUE(write());
  EXPECT_TRUE(map());
  EXPECT_EQ(files(), 1U);
}

TEST_P(PackFile, AnotherKeyIsRefused) {
  ASSERT_TRUE(write());
  std::string other = key_;
  other.back() = other.back() == '0' ? '1' : '0';
  const auto mapped = map_pack_file(path_, other, matrices_);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error().what, "was made from another checkpoint");
  EXPECT_TRUE(unpacked());
}

TEST_P(PackFile, StoppedItLeavesNothing) {
  int calls = 0;
  const auto written = write([&](std::uint64_t, std::uint64_t) { return ++calls < 3; });
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::kCancelled);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(files(), 0U);
}

TEST_P(PackFile, WritersAtOnceAllSucceed) {
  constexpr std::size_t kWriters = 4;
  std::vector<std::optional<Result<std::uint64_t>>> results(kWriters);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kWriters; ++i) {
      threads.emplace_back([&, i] { results[i] = write(); });
    }
  }
  for (const auto& result : results) {
    EXPECT_TRUE(*result) << to_string(result->error());
  }
  EXPECT_EQ(files(), 1U);
  EXPECT_TRUE(map());
}

INSTANTIATE_TEST_SUITE_P(Families, PackFile, testing::Values("v4", "v41"));

// ---- with checkpoints bent on purpose

class BentPackFile : public testing::Test {
 protected:
  [[nodiscard]] std::string key() const {
    return Checkpoint::open(folder_.path()).value().fingerprint();
  }

  FolderForTest folder_;
  CheckpointForTest checkpoint_ = CheckpointForTest::golden("v4");
};

// One code of one matrix is NaN: that matrix has an entry of zeros, all others are as ever.
TEST_F(BentPackFile, AMatrixWithoutAPackedForm) {
  const std::string name = "layers.1.attn.wq_b.weight";
  ASSERT_EQ(checkpoint_.tensors.at(name).dtype, "F8_E4M3");
  checkpoint_.tensors.at(name).bytes.back() = 0x7f;
  checkpoint_.write(folder_.path());
  const Checkpoint checkpoint = Checkpoint::open(folder_.path()).value();
  ModelWeights weights = bind_weights(checkpoint).value();
  const auto matrices = product_matrices(weights);
  const fs::path path = folder_.path() / "file";
  ASSERT_TRUE(write_pack_file(path, checkpoint.fingerprint(), matrices, kSilent));
  const auto mapped = map_pack_file(path, checkpoint.fingerprint(), matrices);
  ASSERT_TRUE(mapped) << to_string(mapped.error());
  for (const kernels::Weight* const matrix : matrices) {
    EXPECT_EQ(matrix->packed == nullptr,
              packed_bytes(*matrix) == 0 || matrix == &weights.layers[1].wq_b);
  }
  EXPECT_EQ(weights.layers[1].wq_b.packed, nullptr);
}

TEST_F(BentPackFile, AModelWithoutAnyPackedFormIsAnError) {
  FolderForTest out;
  kernels::Weight wide{.format = kernels::WeightFormat::kF32, .rows = 16, .columns = 32};
  const std::vector<kernels::Weight*> matrices{&wide};
  const auto written =
      write_pack_file(out.path() / "file", std::string(32, '0'), matrices, kSilent);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::kInvalidArgument);
  EXPECT_TRUE(fs::is_empty(out.path()));
}

TEST_F(BentPackFile, TheFingerprintSeesWhatItSays) {
  checkpoint_.write(folder_.path());
  const fs::path shard = folder_.path() / "model.safetensors";
  const auto time = fs::last_write_time(shard);
  const std::string first = key();
  EXPECT_EQ(first.size(), 32U);
  EXPECT_EQ(first.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(key(), first);

  // Another folder's name is no difference.
  FolderForTest other;
  fs::rename(folder_.path(), other.path());
  EXPECT_EQ(Checkpoint::open(other.path()).value().fingerprint(), first);
  fs::rename(other.path(), folder_.path());

  fs::last_write_time(shard, time + std::chrono::nanoseconds(1));
  EXPECT_NE(key(), first);
  fs::last_write_time(shard, time);
  EXPECT_EQ(key(), first);

  std::ofstream(folder_.path() / "config.json", std::ios::app) << ' ';
  EXPECT_NE(key(), first);
}

// Same size and time, but a header that is spelled differently.
TEST_F(BentPackFile, TheFingerprintSeesTheHeader) {
  checkpoint_.write(folder_.path());
  const fs::path shard = folder_.path() / "model.safetensors";
  const auto time = fs::last_write_time(shard);
  const std::string first = key();
  std::string file = content(shard);
  const std::size_t at = file.find("layers.1.attn.wq_b");
  ASSERT_NE(at, std::string::npos);
  const std::string from = "layers.1.attn.wkv.weight";
  const std::string to = "layers.2.attn.wkv.weight";
  const std::size_t a = file.find(from);
  const std::size_t b = file.find(to);
  ASSERT_TRUE(a != std::string::npos && b != std::string::npos);
  file.replace(a, from.size(), to).replace(b, to.size(), from);
  write_for_test(shard, file);
  fs::last_write_time(shard, time);
  EXPECT_NE(key(), first);
}

}  // namespace
}  // namespace galley::model
