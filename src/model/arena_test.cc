// Goal: an arena hands out memory that does not overlap, takes it back in order, and holds a
// bounded amount whatever sizes come. Method: scopes by hand, then random steps.
#include "model/arena.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <tuple>

#include "base/random.h"

namespace galley::model {
namespace {

TEST(Arena, AScopeTakesBackWhatWasHandedOutInIt) {
  const auto device = kernels::create_cpu_device(1);
  Arena arena(*device);
  float* const kept = arena.floats(100);
  float* inner = nullptr;
  {
    const Arena::Scope scope(arena);
    inner = arena.floats(1000);
    EXPECT_GE(inner, kept + 100);
    {
      const Arena::Scope nested(arena);
      EXPECT_GE(arena.floats(10), inner + 1000);
    }
    EXPECT_GE(arena.floats(10), inner + 1000);
  }
  EXPECT_EQ(arena.floats(1), inner);
  EXPECT_EQ(arena.peak_bytes(), 448U + 4032U + 64U);  // each rounded up to 64
  arena.reset();
  EXPECT_EQ(arena.peak_bytes(), 0U);
  EXPECT_EQ(arena.floats(1), kept);
}

TEST(Arena, AScopeEndsAcrossChunks) {
  const auto device = kernels::create_cpu_device(1);
  Arena arena(*device);
  std::byte* const first = arena.array<std::byte>(64);
  {
    const Arena::Scope scope(arena);
    std::ignore = arena.array<std::byte>(Arena::kChunkBytes);
  }
  EXPECT_EQ(arena.array<std::byte>(64), first + 64);
  EXPECT_EQ(arena.held_bytes(), 2 * Arena::kChunkBytes);
}

TEST(Arena, WhatIsHeldStaysBelowTwiceTheLargestStep) {
  const auto device = kernels::create_cpu_device(1);
  Arena arena(*device);
  Random random(Seed(1), 0);
  std::size_t largest = 0;
  for (int step = 0; step < 200; ++step) {
    arena.reset();
    EXPECT_LE(arena.held_bytes(), largest + Arena::kChunkBytes);
    const std::size_t rows = 1 + random.next_below(64);
    for (const std::size_t width : {20'000U, 300'000U, 5'000U, 170'000U}) {
      const Arena::Scope scope(arena);
      std::ignore = arena.array<std::byte>(rows * width);
      std::ignore = arena.array<std::byte>(rows * width / 3);
    }
    std::ignore = arena.array<std::byte>(rows * 40'000);
    largest = std::max(largest, arena.peak_bytes());
    EXPECT_LE(arena.held_bytes(), 2 * largest + 2 * Arena::kChunkBytes) << step;
  }
  arena.reset();
  const std::size_t held = arena.held_bytes();
  std::ignore = arena.array<std::byte>(largest);
  EXPECT_EQ(arena.held_bytes(), held);  // a size seen before allocates nothing
}

}  // namespace
}  // namespace galley::model
