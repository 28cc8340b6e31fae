#pragma once

// Which mutex guards what, checked by clang's -Wthread-safety; g++ sees nothing. Used with Mutex
// from base/mutex.h, as std::mutex carries no annotations in libstdc++.
#if defined(__clang__)
#define GALLEY_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define GALLEY_THREAD_ATTRIBUTE(...)
#endif

// On a field: read and written only with `mutex` held.
#define GALLEY_GUARDED_BY(mutex) GALLEY_THREAD_ATTRIBUTE(guarded_by(mutex))
// On a function: the caller holds the mutex.
#define GALLEY_REQUIRES(...) GALLEY_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
// On a function: the caller must not hold it, since the function takes it.
#define GALLEY_EXCLUDES(...) GALLEY_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// For base/mutex.h only.
#define GALLEY_CAPABILITY(name) GALLEY_THREAD_ATTRIBUTE(capability(name))
#define GALLEY_SCOPED_CAPABILITY GALLEY_THREAD_ATTRIBUTE(scoped_lockable)
#define GALLEY_ACQUIRE(...) GALLEY_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define GALLEY_RELEASE(...) GALLEY_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
