#include "apps/doctor_machine.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cpuid.h>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <iterator>
#include <linux/io_uring.h>
#include <memory>
#include <sched.h>
#include <set>
#include <span>
#include <string_view>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

#include "base/cpu_count.h"
#include "base/worker_pool.h"

namespace galley::apps {
namespace {

std::string reason() {
  return std::generic_category().message(errno);
}

// "" where there is no such file. Files of /proc and /sys have no size to be read by.
std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What follows `key` and a colon on its line, without spaces around.
std::string_view field(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const std::size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string_view::npos &&
        line.substr(0, colon).find_last_not_of(" \t") + 1 == key.size()) {
      const std::size_t value = line.find_first_not_of(" \t", colon + 1);
      return value == std::string_view::npos ? std::string_view() : line.substr(value);
    }
    at = end + 1;
  }
  return {};
}

// The number that `text` starts with; 0 if none.
double number(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

struct Registers {
  unsigned eax, ebx, ecx, edx;
};

Registers features(unsigned part) {
  Registers r{};
  __get_cpuid_count(7, part, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

// Processors this process may run on, and the cores they are threads of.
void count_cores(CpuFacts& out) {
  out.online = cpu_count();
  out.usable = out.online;
  out.cores = out.online;
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof(usable), &usable) != 0) {
    return;  // more processors than the set holds
  }
  out.usable = CPU_COUNT(&usable);
  std::set<std::string> cores;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &usable)) {
      const std::string siblings =
          text_of(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
      cores.insert(siblings.empty() ? fmt::format("{}", cpu) : siblings);
    }
  }
  out.cores = static_cast<int>(cores.size());
}

// "[always] madvise never": the one in brackets.
std::string chosen_word(std::string_view text) {
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']');
  return open == std::string_view::npos || close == std::string_view::npos || close < open
             ? std::string()
             : std::string(text.substr(open + 1, close - open - 1));
}

std::string io_uring_problem() {
  io_uring_params params{};
  const long ring = ::syscall(SYS_io_uring_setup, 1U, &params);
  if (ring >= 0) {
    ::close(static_cast<int>(ring));
    return "";
  }
  if (errno == ENOSYS) {
    return "the kernel has none: Linux 5.1 or newer";
  }
  if (errno == EPERM || errno == EACCES) {
    return "forbidden: sysctl kernel.io_uring_disabled=0, and a container profile that lets it "
           "through";
  }
  return reason();
}

// --- Disk.

constexpr std::size_t kReadBytes = std::size_t{1} << 20U;
constexpr int kReadsAtOnce = 4;
constexpr std::size_t kBatchReads = 32;
constexpr std::size_t kFileBytesMin = std::size_t{64} << 20U;
constexpr std::size_t kFileBytes = std::size_t{256} << 20U;  // written if there is none
constexpr std::size_t kReadBytesMax = std::size_t{2} << 30U;
constexpr std::chrono::milliseconds kReadTime{1000};
constexpr std::chrono::milliseconds kWriteTime{1000};

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

// The largest regular file directly in `directory`; "" if all are small.
std::string largest_file(const std::string& directory) {
  std::string largest;
  std::uintmax_t bytes = kFileBytesMin - 1;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    if (!at->is_regular_file(ignored) || ::access(at->path().c_str(), R_OK) != 0) {
      continue;
    }
    const std::uintmax_t size = at->file_size(ignored);
    if (!ignored && size > bytes) {
      bytes = size;
      largest = at->path().string();
    }
  }
  return largest;
}

// An unnamed file, open for writing, or -1 and errno.
int open_unnamed(const std::string& directory) {
  const int file = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) {
    return file;
  }
  std::string path = directory + "/.galley-doctor-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) {
    ::unlink(path.c_str());
  }
  return named;
}

// As much of `content` as can be written in time; "" or what went wrong.
std::string write_file(int file, std::span<const std::byte> content, const Clock& clock) {
  const TimeNs start = clock.now();
  std::size_t done = 0;
  while (done < content.size() && (done < kFileBytesMin / 2 || clock.now() - start < kWriteTime)) {
    const ssize_t some =
        ::pwrite(file, content.data() + done, std::min(8 * kReadBytes, content.size() - done),
                 static_cast<off_t>(done));
    if (some <= 0) {
      return "cannot write a temporary file there: " + reason();
    }
    done += static_cast<std::size_t>(some);
    // Not only into the page cache, so that the time is the disk's.
    if (::fdatasync(file) != 0) {
      return "cannot write a temporary file there: " + reason();
    }
  }
  return "";
}

struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

// Whole mebibytes of `file` from the start on, several reads under way, until its end or time is
// up.
void read_timed(int file, std::size_t bytes, const Clock& clock, DiskFacts& out) {
  constexpr std::size_t kPage = 4096;
  const std::size_t reads_max = std::min(bytes, kReadBytesMax) / kReadBytes;
  const std::unique_ptr<std::byte, Free> buffers(
      static_cast<std::byte*>(std::aligned_alloc(kPage, kBatchReads * kReadBytes)));
  WorkerPool pool(kReadsAtOnce);
  std::atomic<int> problem{buffers == nullptr ? ENOMEM : 0};
  std::size_t reads = 0;
  const TimeNs start = clock.now();
  Duration took{};
  while (reads < reads_max && took < kReadTime && problem == 0) {
    const std::size_t count = std::min(kBatchReads, reads_max - reads);
    pool.run(count, [&](std::size_t task) {
      const auto at = static_cast<off_t>((reads + task) * kReadBytes);
      const ssize_t got = ::pread(file, buffers.get() + task * kReadBytes, kReadBytes, at);
      if (got != static_cast<ssize_t>(kReadBytes)) {
        problem = got < 0 ? errno : EIO;
      }
    });
    reads += count;
    took = clock.now() - start;
  }
  if (problem != 0) {
    out.problem = "cannot be read: " + std::generic_category().message(problem);
    return;
  }
  out.bytes_per_second = static_cast<double>(reads * kReadBytes) /
                         std::chrono::duration<double>(std::max(took, Duration(1))).count();
}

void measure_file(int file, const Clock& clock, DiskFacts& out) {
  struct stat status{};
  if (::fstat(file, &status) != 0) {
    out.problem = reason();
    return;
  }
  // What is in the page cache would be measured instead of the disk.
  out.direct = ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) | O_DIRECT) == 0;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (out.direct) {
    read_timed(file, bytes, clock, out);
    if (out.problem.empty()) {
      return;
    }
    // Some file systems take the flag and refuse the reads.
    ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_DIRECT);
    out.direct = false;
    out.problem.clear();
  }
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  read_timed(file, bytes, clock, out);
}

}  // namespace

CpuFacts read_cpu() {
  CpuFacts out;
  const std::string info = text_of("/proc/cpuinfo");
  out.model = field(info, "model name");
  count_cores(out);
  out.load = number(text_of("/proc/loadavg"));
  const std::string quota = text_of("/sys/fs/cgroup/cpu.max");  // "200000 100000", "max 100000"
  if (const std::size_t space = quota.find(' '); space != std::string::npos) {
    const double period = number(std::string_view(quota).substr(space + 1));
    out.quota = period > 0 ? number(quota) / period : 0;
  }
  // Intel's manual, volume 2, CPUID: leaf 7 and its part 1.
  const auto bit = [](unsigned word, unsigned index) { return (word >> index & 1U) != 0; };
  const Registers first = features(0);
  const Registers second = features(1);
  out.avx2 = bit(first.ebx, 5);
  out.avx512 = bit(first.ebx, 16) && bit(first.ebx, 17) && bit(first.ebx, 30) && bit(first.ebx, 31);
  out.avx512_vnni = bit(first.ecx, 11);
  out.avx512_bf16 = bit(second.eax, 5);
  out.amx = bit(first.edx, 22) && bit(first.edx, 24);
  const auto supported = kernels::supported_isas();
  out.supported.assign(supported.begin(), supported.end());
  return out;
}

MemoryFacts read_memory() {
  constexpr double kKib = 1024;
  MemoryFacts out;
  const std::string info = text_of("/proc/meminfo");
  out.total_bytes = number(field(info, "MemTotal")) * kKib;
  out.available_bytes = number(field(info, "MemAvailable")) * kKib;
  const double most = number(text_of("/sys/fs/cgroup/memory.max"));  // "max": no limit
  if (most > 0) {
    out.total_bytes = std::min(out.total_bytes, most);
    out.available_bytes =
        std::min(out.available_bytes,
                 std::max(0.0, most - number(text_of("/sys/fs/cgroup/memory.current"))));
  }
  out.huge_pages = chosen_word(text_of("/sys/kernel/mm/transparent_hugepage/enabled"));
  return out;
}

LimitFacts read_limits() {
  const auto soft = [](auto which) -> std::optional<std::uint64_t> {
    rlimit limit{};
    if (::getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
      return std::nullopt;
    }
    return limit.rlim_cur;
  };
  return {.locked_bytes = soft(RLIMIT_MEMLOCK), .open_files = soft(RLIMIT_NOFILE)};
}

DiskFacts measure_disk(const std::string& directory,
                       std::span<const std::byte> content,
                       const Clock& clock) {
  DiskFacts out;
  out.directory = directory;
  out.io_uring = io_uring_problem();
  if (const std::string path = largest_file(directory); !path.empty()) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.number() < 0) {
      out.problem = reason();
    } else {
      measure_file(file.number(), clock, out);
    }
    return out;
  }
  const Descriptor file(open_unnamed(directory));
  if (file.number() < 0) {
    out.problem = fmt::format("no file of {} MiB is there, and none can be written: {}",
                              kFileBytesMin >> 20U, reason());
    return out;
  }
  out.problem =
      write_file(file.number(), content.first(std::min(kFileBytes, content.size())), clock);
  if (out.problem.empty()) {
    measure_file(file.number(), clock, out);
  }
  return out;
}

}  // namespace galley::apps
