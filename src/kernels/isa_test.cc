// Goal: an instruction set is chosen by name or by what the machine has, and a wrong name says what
// there is.
#include "kernels/isa.h"

#include <algorithm>
#include <gtest/gtest.h>

namespace galley::kernels {
namespace {

TEST(Isa, NothingWantedGivesTheBestOfThisMachine) {
  const Result<Isa> isa = choose_isa("");
  ASSERT_TRUE(isa.has_value());
  EXPECT_EQ(*isa, supported_isas().front());
}

TEST(Isa, ReferenceAndTheFloorAreAlwaysThere) {
  for (const char* const name : {"reference", "avx2"}) {
    const Result<Isa> isa = choose_isa(name);
    ASSERT_TRUE(isa.has_value()) << name;
    EXPECT_EQ(isa_name(*isa), name);
  }
}

TEST(Isa, UnknownNameIsAnErrorThatNamesTheKnownOnes) {
  const Result<Isa> isa = choose_isa("AVX2\n");
  ASSERT_FALSE(isa.has_value());
  EXPECT_EQ(isa.error().code, Code::kInvalidArgument);
  EXPECT_EQ(
      isa.error().what,
      "GALLEY_ISA=\"AVX2\\n\": no such instruction set; there are amx, avx512, avx2, reference");
}

TEST(Isa, WhatThisMachineLacksIsAnError) {
  for (const Isa isa : {Isa::kAmx, Isa::kAvx512}) {
    const bool here = std::ranges::count(supported_isas(), isa) > 0;
    EXPECT_EQ(choose_isa(isa_name(isa)).has_value(), here) << isa_name(isa);
  }
}

}  // namespace
}  // namespace galley::kernels
