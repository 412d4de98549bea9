#pragma once

#include <cstddef>

namespace headway::embedding {

template <class Bucket>
struct KeySegment;

/// Directory entry of a KeyIndex: the segment of one prefix of hashes. Lookups read `buckets` and `mask` only.
template <class Bucket>
struct DirectoryEntry {
  Bucket* buckets;
  std::size_t mask;  ///< Number of buckets - 1.
  KeySegment<Bucket>* segment;
};

/// Read-only view of a KeyIndex's directory, valid until the index changes.
template <class Bucket>
struct DirectoryView {
  DirectoryEntry<Bucket> const* entries;
  int shift;  ///< 63 - number of hash bits that choose an entry.
};

}  // namespace headway::embedding
