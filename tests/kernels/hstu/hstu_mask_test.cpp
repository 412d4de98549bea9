// SPDX-License-Identifier: Apache-2.0

// HstuSequenceMask against its definition: every mask of short sequences, token by token.
//
// The tokens of a sequence are its keys: contextual tokens, then the history, then targets. Queries are the last of
// them. The tail (full_attention_tail) is the number of last history tokens that the window does not limit.

#include "headway/kernels/hstu_mask.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace headway::kernels {
namespace {

/// Calls `visit` with every mask of sequences with up to 7 keys.
template <class Visit>
void for_each_mask(Visit visit) {
  for (auto const causality : {Causality::kCausal, Causality::kBidirectional})
    for (int const window : {0, 1, 2, 4, 100})
      for (int const tail : {0, 1, 3, 100})
        for (int num_keys = 1; num_keys <= 7; ++num_keys)
          for (int num_contextual = 0; num_contextual <= num_keys; ++num_contextual)
            for (int num_targets = 0; num_contextual + num_targets <= num_keys; ++num_targets)
              for (int const num_queries : {1, (num_keys + 1) / 2, num_keys})
                visit(HstuSequenceMask{.options = {causality, window, tail},
                                       .num_queries = num_queries,
                                       .num_keys = num_keys,
                                       .num_contextual = num_contextual,
                                       .num_targets = num_targets});
}

std::string described(HstuSequenceMask const& mask) {
  return (mask.options.causality == Causality::kCausal ? "causal" : "bidirectional") + std::string(", window ") +
         std::to_string(mask.options.window) + ", tail " + std::to_string(mask.options.full_attention_tail) + ", " +
         std::to_string(mask.num_queries) + " queries, " + std::to_string(mask.num_keys) + " keys, " +
         std::to_string(mask.num_contextual) + " contextual, " + std::to_string(mask.num_targets) + " targets";
}

/// Visibility of a block by counting its visible pairs.
BlockVisibility counted_visibility(HstuSequenceMask const& mask, int query_begin, int query_end, int key_begin,
                                   int key_end) {
  int num_seen = 0;
  for (int query = query_begin; query < query_end; ++query)
    for (int key = key_begin; key < key_end; ++key) num_seen += mask.sees(query, key) ? 1 : 0;
  if (num_seen == 0) return BlockVisibility::kNone;
  return num_seen == (query_end - query_begin) * (key_end - key_begin) ? BlockVisibility::kFull
                                                                       : BlockVisibility::kPartial;
}

TEST(HstuSequenceMask, ABlockIsAsVisibleAsItsTokens) {
  for_each_mask([](HstuSequenceMask const& mask) {
    for (int query_begin = 0; query_begin < mask.num_queries; ++query_begin)
      for (int query_end = query_begin + 1; query_end <= mask.num_queries; ++query_end)
        for (int key_begin = 0; key_begin < mask.num_keys; ++key_begin)
          for (int key_end = key_begin + 1; key_end <= mask.num_keys; ++key_end)
            ASSERT_EQ(mask.visibility(query_begin, query_end, key_begin, key_end),
                      counted_visibility(mask, query_begin, query_end, key_begin, key_end))
                << described(mask) << ": queries " << query_begin << " to " << query_end << ", keys " << key_begin
                << " to " << key_end;
  });
}

TEST(HstuSequenceMask, AQuerySeesOneRangeOfKeysAndItself) {
  for_each_mask([](HstuSequenceMask const& mask) {
    for (int query = 0; query < mask.num_queries; ++query) {
      HstuKeyRange const seen = mask.keys_seen_by(query);
      ASSERT_TRUE(seen.begin >= 0 && seen.end <= mask.num_keys) << described(mask) << ": query " << query;
      for (int key = 0; key < mask.num_keys; ++key)
        ASSERT_EQ((key >= seen.begin && key < seen.end) || key == mask.token_of(query), mask.sees(query, key))
            << described(mask) << ": query " << query << ", key " << key;
    }
  });
}

/// Drawing of a mask: one line per query, 1 for visible keys.
std::string drawn(HstuSequenceMask const& mask) {
  std::string rows;
  for (int query = 0; query < mask.num_queries; ++query) {
    for (int key = 0; key < mask.num_keys; ++key) rows += mask.sees(query, key) ? '1' : '.';
    rows += '\n';
  }
  return rows;
}

TEST(HstuSequenceMask, TargetsSeeTheHistoryAndThemselvesAlone) {
  EXPECT_EQ(drawn({.options = {}, .num_queries = 6, .num_keys = 6, .num_contextual = 1, .num_targets = 2}),
            "1111..\n"
            "11....\n"
            "111...\n"
            "1111..\n"
            "11111.\n"
            "1111.1\n");
}

TEST(HstuSequenceMask, ContextualTokensSeeWhatOthersOfTheirPositionWouldAndMore) {
  HstuMaskOptions const options{.causality = Causality::kBidirectional, .window = 3};
  EXPECT_EQ(drawn({.options = options, .num_queries = 6, .num_keys = 6, .num_contextual = 2, .num_targets = 2}),
            "111111\n"
            "111111\n"
            "111111\n"
            "111111\n"
            "11111.\n"
            "1111.1\n");
  EXPECT_EQ(drawn({.options = options, .num_queries = 6, .num_keys = 6, .num_contextual = 2, .num_targets = 1}),
            "11111.\n"
            "11111.\n"
            "111111\n"
            "111111\n"
            "111111\n"
            "..1111\n");
}

}  // namespace
}  // namespace headway::kernels
