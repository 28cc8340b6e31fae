// Prints how fast text is turned into token ids: tokenize_bench TOKENIZER_JSON TEXT [RUNS]
// The text is cut into documents of 4,000 characters, as spec recipe 9.4 has it, and encoded by one
// thread. "cpu" is the thread's own time, which other jobs on the machine disturb least. The first
// run is printed apart: nothing was encoded before it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fmt/core.h>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/tokenizer.h"

namespace {

using galley::TokenId;
using galley::recipe::Tokenizer;

constexpr std::size_t kDocumentChars = 4'000;

double cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double wall_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string_view> documents(std::string_view text) {
  std::vector<std::string_view> found;
  std::size_t begin = 0;
  std::size_t chars = 0;
  for (std::size_t at = 0; at != text.size(); ++at) {
    const bool starts_char = (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
    if (starts_char && chars++ == kDocumentChars) {
      found.push_back(text.substr(begin, at - begin));
      begin = at;
      chars = 1;
    }
  }
  found.push_back(text.substr(begin));
  return found;
}

struct Run {
  double cpu{};
  double wall{};
  std::size_t tokens{};
};

Run encode_all(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts) {
  Run run;
  std::vector<TokenId> ids;
  const double cpu = cpu_s();
  const double wall = wall_s();
  for (const std::string_view text : texts) {
    ids.clear();
    tokenizer.encode(text, ids);
    run.tokens += ids.size();
  }
  run.cpu = cpu_s() - cpu;
  run.wall = wall_s() - wall;
  return run;
}

void print(const char* name, const Run& run, std::size_t bytes) {
  const auto rate = [](std::size_t count, double seconds) {
    return static_cast<double>(count) / seconds * 1e-6;
  };
  fmt::print("{:8} {:7.2f} MB/s cpu {:7.2f} MB/s wall {:6.2f} M tokens/s cpu {} tokens\n", name,
             rate(bytes, run.cpu), rate(bytes, run.wall), rate(run.tokens, run.cpu), run.tokens);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenize_bench TOKENIZER_JSON TEXT [RUNS]\n");
    return 2;
  }
  const double start = wall_s();
  const auto tokenizer = Tokenizer::from_file(argv[1]);
  if (!tokenizer) {
    fmt::print(stderr, "{}\n", galley::to_string(tokenizer.error()));
    return 1;
  }
  fmt::print("load     {:7.1f} ms\n", (wall_s() - start) * 1e3);
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::vector<std::string_view> texts = documents(text);
  const int run_count = argc > 3 ? std::max(1, std::atoi(argv[3])) : 7;

  print("first", encode_all(**tokenizer, texts), text.size());
  std::vector<Run> runs;
  for (int i = 0; i != run_count; ++i) {
    runs.push_back(encode_all(**tokenizer, texts));
  }
  std::ranges::sort(runs, {}, &Run::cpu);
  print("best", runs.front(), text.size());
  print("median", runs[runs.size() / 2], text.size());
}
