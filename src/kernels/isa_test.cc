// Goal: an instruction set is chosen by name or by what the machine has, and a wrong name says what
// there is.
#include "kernels/isa.h"

#include <array>
#include <gtest/gtest.h>
#include <string>

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

TEST(Isa, WhatTheMachineLacksIsAnError) {
  constexpr std::array kOld = {Isa::kAvx2, Isa::kReference};
  EXPECT_EQ(choose_isa("", kOld).value(), Isa::kAvx2);
  EXPECT_EQ(choose_isa("reference", kOld).value(), Isa::kReference);
  for (const char* const name : {"amx", "avx512"}) {
    const Result<Isa> isa = choose_isa(name, kOld);
    ASSERT_FALSE(isa.has_value());
    EXPECT_EQ(isa.error().code, Code::kInvalidArgument);
    EXPECT_EQ(isa.error().what, std::string("GALLEY_ISA=") + name + ": this machine lacks it");
  }
}

}  // namespace
}  // namespace galley::kernels
