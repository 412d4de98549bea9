// SPDX-License-Identifier: Apache-2.0

// Packed numbers, and lists of ids in each form: what is decoded is what was encoded, and hostile bytes are refused.

#include "headway/kernels/id_lists.hpp"

#include "headway/base/status.hpp"
#include "headway/kernels/packed_numbers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

namespace headway::kernels {
namespace {

using Bytes = std::vector<std::byte>;

template <class Number>
void expect_packed(std::vector<Number> const& numbers, unsigned width) {
  std::span<Number const> const view(numbers);
  auto const packing = packing_of(view);
  EXPECT_EQ(packing.width, width);
  Bytes bytes(3);  // Something in front.
  append_packed(view, packing, bytes);
  ASSERT_EQ(bytes.size(), 3 + packing.num_bytes(numbers.size()));
  std::vector<Number> same(numbers.size());
  EXPECT_TRUE(unpack(std::span<std::byte const>(bytes).subspan(3), std::span(same)).empty());
  EXPECT_EQ(same, numbers);
}

TEST(PackedNumbers, KeepNumbersOfEachWidth) {
  std::mt19937_64 random(1);
  for (unsigned width = 1; width <= 64; ++width) {
    for (std::size_t const count : {2, 3, 8, 63, 64, 65, 1000}) {
      std::vector<std::uint64_t> numbers(count);
      for (auto& number : numbers) number = random() >> (64 - width);
      numbers[0] = 0;
      numbers[1] = ~std::uint64_t{0} >> (64 - width);
      expect_packed(numbers, width > 56 ? 64 : width);
      if (width > 56) continue;
      std::vector<std::int64_t> shifted;
      for (auto const number : numbers) shifted.push_back(static_cast<std::int64_t>(number) - 12'345);
      expect_packed(shifted, width);
    }
  }
  expect_packed<std::int64_t>({}, 0);
  expect_packed<std::int64_t>(std::vector<std::int64_t>(100, -7), 0);
  expect_packed<std::int64_t>({std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}, 64);
  expect_packed<std::uint32_t>({7, 0xffffffff}, 32);
}

TEST(PackedNumbers, RefuseWhatIsCutOffOrTooLarge) {
  std::vector<std::uint64_t> const numbers{5, 1'000, std::uint64_t{1} << 40};
  std::vector<std::uint64_t> same(numbers.size());
  std::vector<std::uint32_t> narrow(numbers.size());
  Bytes bytes;
  append_packed(std::span(numbers), packing_of(std::span(numbers)), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(static_cast<void>(unpack(std::span<std::byte const>(bytes).first(size), std::span(same))),
                 base::UsageError);
  }
  EXPECT_THROW(static_cast<void>(unpack(std::span<std::byte const>(bytes), std::span(narrow))), base::UsageError);
  bytes[0] = std::byte{60};
  EXPECT_THROW(static_cast<void>(unpack(std::span<std::byte const>(bytes), std::span(same))), base::UsageError);
  Bytes beyond;
  append_packed(std::span(numbers).first(2), {.minimum = 0xffffffff, .width = 0}, beyond);
  static_cast<void>(unpack(std::span<std::byte const>(beyond), std::span(narrow).first(2)));
  EXPECT_EQ(narrow[1], 0xffffffff);
  beyond[0] = std::byte{1};
  beyond.push_back(std::byte{2});
  EXPECT_THROW(static_cast<void>(unpack(std::span<std::byte const>(beyond), std::span(narrow).first(2))),
               base::UsageError)
      << "2^32 - 1 and 1 more";
}

/// Encodes lists, and expects them from the decoder. @returns form and bytes
std::pair<IdForm, Bytes> expect_same(IdLists const& lists) {
  Bytes bytes;
  auto const form = append_id_lists(lists.lengths, lists.ids, bytes);
  EXPECT_LE(bytes.size(), 1 + 8 * (lists.lengths.size() + lists.ids.size()));
  IdLists same;
  EXPECT_TRUE(decode_id_lists(bytes, lists.lengths.size(), lists.ids.size(), same).empty());
  EXPECT_EQ(same.lengths, lists.lengths);
  EXPECT_EQ(same.ids, lists.ids);
  return {form, bytes};
}

TEST(IdLists, TakeTheSmallestForm) {
  EXPECT_EQ(expect_same({}).first, IdForm::kPlain);
  EXPECT_EQ(expect_same({.lengths = {2, 0, 1}, .ids = {70, 30, 70}}).first, IdForm::kPacked) << "headers count, too";
  EXPECT_EQ(expect_same({.lengths = {1}, .ids = {-5}}).first, IdForm::kPlain);
  std::mt19937_64 random(2);
  IdLists lists;
  for (int i = 0; i < 500; ++i) {
    lists.lengths.push_back(2);
    for (int k = 0; k < 2; ++k) lists.ids.push_back(static_cast<std::int64_t>(random()));
  }
  auto const any = expect_same(lists);
  EXPECT_EQ(any.first, IdForm::kPacked) << "lengths of 2 take no bits, and ids of 64 bits each take 64";
  EXPECT_LT(any.second.size(), 8 * 1000 + 20);
  for (auto& id : lists.ids) id &= 0x3ffffff;
  auto const narrow = expect_same(lists);
  EXPECT_EQ(narrow.first, IdForm::kPacked);
  EXPECT_LT(narrow.second.size(), 1000 * 26 / 8 + 20);
  for (auto& id : lists.ids) id = static_cast<std::int64_t>(0x1234567890abcdef * (1 + random() % 50));
  auto const few = expect_same(lists);
  EXPECT_EQ(few.first, IdForm::kPositions) << "50 unique ids";
  EXPECT_LT(few.second.size(), 50 * 8 + 1000 * 6 / 8 + 40);
  // Few of many samples have an id.
  IdLists sparse{.lengths = std::vector<std::int64_t>(65'536), .ids = {}};
  for (std::size_t sample = 0; sample < sparse.lengths.size(); sample += 400) {
    sparse.lengths[sample] = 1;
    sparse.ids.push_back(static_cast<std::int64_t>(random() % 10));
  }
  auto const samples = expect_same(sparse);
  EXPECT_EQ(samples.first, IdForm::kSamples);
  EXPECT_LT(samples.second.size(), 500U) << "164 samples of 16 bits and a mark, beside 8 kB for a bit of each length";
}

TEST(IdLists, KeepTheOrderWithinAList) {
  IdLists sparse{.lengths = std::vector<std::int64_t>(65'536), .ids = {1, 2, 2, 1}};
  sparse.lengths[9] = 2;
  sparse.lengths[700] = 2;
  EXPECT_NE(expect_same(sparse).first, IdForm::kSamples) << "the second list has the ids in another order";
  sparse.ids = {1, 2, 1, 2};
  EXPECT_EQ(expect_same(sparse).first, IdForm::kSamples);
  sparse.ids = {1, 1, 1, 1};
  EXPECT_EQ(expect_same(sparse).first, IdForm::kSamples) << "an id may be in a list twice";
}

TEST(IdLists, HaveNoLargestBatch) {
  std::mt19937_64 random(3);
  for (std::size_t const num_lists : {65'535, 65'536, 65'537, 70'000}) {
    IdLists many{.lengths = std::vector<std::int64_t>(num_lists, 1), .ids = {}};  // Positions.
    IdLists sparse{.lengths = std::vector<std::int64_t>(num_lists), .ids = {}};   // Samples, also the last one.
    for (std::size_t i = 0; i < num_lists; ++i) {
      many.ids.push_back(static_cast<std::int64_t>(i * 0x10'0000'0000'0001));
      if ((num_lists - 1 - i) % 1000 != 0) continue;
      sparse.lengths[i] = 1;
      sparse.ids.push_back(static_cast<std::int64_t>(random() % 8));
    }
    many.lengths.insert(many.lengths.end(), num_lists, 0);
    many.ids.insert(many.ids.end(), many.ids.begin(), many.ids.end());
    std::ranges::fill(many.lengths, 1);
    EXPECT_EQ(expect_same(many).first, IdForm::kPositions) << num_lists;
    auto const [form, bytes] = expect_same(sparse);
    EXPECT_EQ(form, IdForm::kSamples) << num_lists;
    // The last sample and a mark: 17 bits up to 65,536 samples, and 18 beyond.
    EXPECT_EQ(static_cast<unsigned>(bytes[1 + 4 + Packing{.width = 3}.num_bytes(8)]), num_lists > 65'536 ? 18U : 17U);
  }
}

TEST(IdLists, KeepLengthsThatDoNotAddUp) {
  for (std::vector<std::int64_t> const& lengths :
       {std::vector<std::int64_t>{1, 1}, {5, 5}, {-1, 4}, {}, {std::numeric_limits<std::int64_t>::max(), 4}}) {
    expect_same({.lengths = lengths, .ids = {7, 7, 7}});
  }
}

/// 20 ids a sample, drawn by Zipf's law of exponent 1.2 over 50 million ids.
IdLists zipf_batch(std::size_t num_samples, unsigned seed) {
  constexpr double kExponent = 1.2, kIds = 50e6;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform;
  // Inversion of the integral of x^-1.2 from 0.5 on, which is close to the sum.
  double const first = std::pow(0.5, 1 - kExponent), last = std::pow(kIds + 0.5, 1 - kExponent);
  IdLists lists{.lengths = std::vector<std::int64_t>(num_samples, 20), .ids = {}};
  for (std::size_t i = 0; i < num_samples * 20; ++i) {
    double const x = std::pow(first + uniform(random) * (last - first), 1 / (1 - kExponent));
    lists.ids.push_back(static_cast<std::int64_t>(x + 0.5));
  }
  return lists;
}

TEST(IdLists, OfASkewedBatchAreASmallPartOfPlainOnes) {
  auto const lists = zipf_batch(4096, 1);
  auto const [form, bytes] = expect_same(lists);
  EXPECT_EQ(form, IdForm::kPositions);
  double const plain = 8.0 * static_cast<double>(lists.ids.size());  // Without the lengths, which take no bits here.
  EXPECT_GE(plain / static_cast<double>(bytes.size()), 2.8);
}

TEST(IdLists, OfHostileBytesAreRefusedOrOfTheRightSizes) {
  std::mt19937_64 random(4);
  IdLists sparse{.lengths = std::vector<std::int64_t>(3000), .ids = {}}, few = zipf_batch(20, 2), tiny = few;
  for (std::size_t sample = 0; sample < sparse.lengths.size(); sample += 100) {
    sparse.lengths[sample] = 1;
    sparse.ids.push_back(static_cast<std::int64_t>(random() % 5));
  }
  tiny.lengths.resize(1);
  tiny.ids.resize(1);
  for (auto& id : few.ids) id %= 20;
  std::unordered_set<int> forms;
  std::size_t num_refused = 0;
  for (auto const& lists : {sparse, few, zipf_batch(20, 3), tiny}) {
    Bytes valid;
    forms.insert(static_cast<int>(append_id_lists(lists.lengths, lists.ids, valid)));
    for (int round = 0; round < 3000; ++round) {
      auto bytes = valid;
      for (auto changes = random() % 4; changes > 0; --changes) {
        // Headers of arrays are most often at the front.
        auto const at =
            random() % 2 == 0 ? random() % bytes.size() : random() % std::min<std::size_t>(30, bytes.size());
        bytes[at] = static_cast<std::byte>(random());
      }
      if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
      bytes.shrink_to_fit();
      auto const num_lists = lists.lengths.size() + (random() % 4 == 0 ? random() % 3 : 0);
      auto const num_ids = lists.ids.size() + (random() % 4 == 0 ? random() % 3 : 0);
      IdLists decoded;
      try {
        EXPECT_LE(decode_id_lists(bytes, num_lists, num_ids, decoded).size(), bytes.size());
        EXPECT_EQ(decoded.lengths.size(), num_lists);
        EXPECT_EQ(decoded.ids.size(), num_ids);
      } catch (base::UsageError const&) {
        ++num_refused;
      }
    }
  }
  EXPECT_EQ(forms.size(), 4U) << "all forms were changed";
  EXPECT_GT(num_refused, 1000U);
}

}  // namespace
}  // namespace headway::kernels
