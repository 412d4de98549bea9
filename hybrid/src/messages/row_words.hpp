// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headway/hybrid/indexed_rows.hpp"
#include "messages/words.hpp"

namespace headway::hybrid {

/// Writes rows as a part of a message.
void write_indexed_rows(WordWriter& to, IndexedRows const& rows);
[[nodiscard]] IndexedRows read_indexed_rows(WordReader& from);

}  // namespace headway::hybrid
