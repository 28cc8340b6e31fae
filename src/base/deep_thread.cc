#include "base/deep_thread.h"

#include <fmt/core.h>
#include <pthread.h>
#include <system_error>

#include "base/check.h"

namespace galley {

Result<void> run_deep(std::size_t stack_bytes, const std::function<void()>& task) {
  pthread_attr_t attributes;
  pthread_t thread{};
  const auto enter = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  int status = pthread_attr_init(&attributes);
  if (status == 0) {
    status = pthread_attr_setstacksize(&attributes, stack_bytes);
    if (status == 0) {
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): C has no const in this place
      status =
          pthread_create(&thread, &attributes, enter, const_cast<std::function<void()>*>(&task));
    }
    pthread_attr_destroy(&attributes);
  }
  if (status != 0) {
    return fail(Code::kUnavailable,
                fmt::format("no thread with a stack of {} bytes: {}", stack_bytes,
                            std::generic_category().message(status)));
  }
  GALLEY_ASSERT(pthread_join(thread, nullptr) == 0);
  return {};
}

}  // namespace galley
