#include "cache/state_store.h"

#include <gtest/gtest.h>

namespace galley::cache {
namespace {

class Sized final : public State {
 public:
  explicit Sized(std::size_t bytes) : bytes_(bytes) {}
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
};

std::shared_ptr<const State> sized(std::size_t bytes) {
  return std::make_shared<Sized>(bytes);
}

BlockKey key(int number) {
  BlockKey out;
  out.bytes[0] = static_cast<std::byte>(number);
  return out;
}

constexpr TimeNs at(int seconds) {
  return TimeNs() + std::chrono::seconds(seconds);
}

TEST(StateStore, KeepsWhatIsUsedAndForgetsTheRest) {
  StateStore store(Bytes(100));
  ASSERT_TRUE(store.put(key(1), sized(10), at(0)));
  ASSERT_TRUE(store.put(key(2), sized(20), at(0)));
  EXPECT_TRUE(store.find(key(1), at(179)));
  EXPECT_FALSE(store.find(key(2), at(180)));
  EXPECT_TRUE(store.find(key(1), at(358)));
  EXPECT_EQ(store.bytes(), 10U);
  EXPECT_FALSE(store.find(key(1), at(538)));
  EXPECT_EQ(store.bytes(), 0U);
  EXPECT_EQ(store.size(), 0U);
}

TEST(StateStore, WhatWasUsedLongestAgoMakesRoom) {
  StateStore store(Bytes(30));
  ASSERT_TRUE(store.put(key(1), sized(10), at(0)));
  ASSERT_TRUE(store.put(key(2), sized(10), at(1)));
  EXPECT_TRUE(store.find(key(1), at(2)));
  ASSERT_TRUE(store.put(key(3), sized(20), at(3)));
  EXPECT_FALSE(store.find(key(2), at(3)));
  EXPECT_TRUE(store.find(key(1), at(3)));
  EXPECT_EQ(store.bytes(), 30U);
  EXPECT_FALSE(store.put(key(4), sized(31), at(3))) << "larger than all the room";
  EXPECT_EQ(store.size(), 2U);
}

TEST(StateStore, TheFirstOfAKeyStays) {
  StateStore store(Bytes(100));
  ASSERT_TRUE(store.put(key(1), sized(10), at(0)));
  EXPECT_FALSE(store.put(key(1), sized(11), at(0)));
  EXPECT_EQ(store.find(key(1), at(0))->bytes(), 10U);
  store.forget(key(1), sized(10).get());
  EXPECT_EQ(store.bytes(), 10U) << "somebody else's stays";
  const std::shared_ptr<const State> kept = store.find(key(1), at(0));
  store.forget(key(1), kept.get());
  store.forget(key(1), kept.get());
  EXPECT_EQ(store.bytes(), 0U);
  EXPECT_FALSE(store.find(key(1), at(0)));
}

}  // namespace
}  // namespace galley::cache
