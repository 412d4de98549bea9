#pragma once

#include <cstddef>

namespace headway::embedding {

template <class Bucket>
struct KeySegment;

/// Keys of one prefix of hashes. Lookups need its buckets alone.
template <class Bucket>
struct DirectoryEntry {
  Bucket* buckets;
  std::size_t mask;
  KeySegment<Bucket>* segment;
};

/// The directory of a KeyIndex, until its next change.
template <class Bucket>
struct DirectoryView {
  DirectoryEntry<Bucket> const* entries;
  int shift;  ///< 63 - the number of bits that choose an entry.
};

}  // namespace headway::embedding
