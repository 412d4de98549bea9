// SPDX-License-Identifier: Apache-2.0

// Types and operations that Gloo reduces, and substitutes for those that it does not.
//
// Problem: Gloo has no code for 16-bit integers or for unsigned integers of more than 8 bits. It reports that from a
// thread of its own while the reduction runs. This file decides it before the start.
//
// Idea: integers are reduced in a wider type and truncated. Addition, multiplication and bitwise operations modulo 2^32
// agree modulo 2^16, and a wider type keeps the order for MIN and MAX. No type is wider than uint64: int64 adds,
// multiplies and combines the same bits, and keeps the order once the top bit is inverted.
//
// Example, SUM of int16: 30000 + 30000 is 60000 in int32 and -5536 after truncation, the same as in 16-bit arithmetic.
//
// A bool is a byte of 0 or 1. Gloo would add these bytes: two true values give 2, and 256 of them give false. So SUM of
// bool becomes MAX.

#include "reduction/gloo_reduction.hpp"

namespace headway::c10d_backend {

namespace {

using Operation = c10d::ReduceOp::RedOpType;
using at::ScalarType;

bool orders(Operation operation) { return operation == Operation::MIN || operation == Operation::MAX; }

bool combines_bits(Operation operation) {
  return operation == Operation::BAND || operation == Operation::BOR || operation == Operation::BXOR;
}

bool adds_or_multiplies(Operation operation) { return operation == Operation::SUM || operation == Operation::PRODUCT; }

std::optional<GlooReduction> integer_reduction(ScalarType type, Operation operation) {
  if (!orders(operation) && !combines_bits(operation) && !adds_or_multiplies(operation)) return std::nullopt;
  switch (type) {
    case ScalarType::Bool:
      return GlooReduction{type, operation == Operation::SUM ? Operation::MAX : operation};
    case ScalarType::Short:
    case ScalarType::UInt16:
      return GlooReduction{ScalarType::Int, operation};
    case ScalarType::UInt32:
      return GlooReduction{ScalarType::Long, operation};
    case ScalarType::UInt64:
      return GlooReduction{ScalarType::Long, operation, /*flips_sign=*/orders(operation)};
    default:
      return GlooReduction{type, operation};
  }
}

}  // namespace

std::optional<GlooReduction> gloo_reduction(ScalarType type, Operation operation) {
  switch (type) {
    case ScalarType::Bool:
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::UInt16:
    case ScalarType::Int:
    case ScalarType::UInt32:
    case ScalarType::Long:
    case ScalarType::UInt64:
      return integer_reduction(type, operation);
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Float:
    case ScalarType::Double:
      if (!adds_or_multiplies(operation) && !orders(operation) && operation != Operation::AVG) return std::nullopt;
      return GlooReduction{type, operation};
    case ScalarType::ComplexHalf:
    case ScalarType::ComplexFloat:
    case ScalarType::ComplexDouble:
      if (operation != Operation::SUM && operation != Operation::AVG) return std::nullopt;
      return GlooReduction{type == ScalarType::ComplexHalf ? ScalarType::ComplexFloat : type, operation};
    default:
      return std::nullopt;
  }
}

bool gloo_adds_sparse(ScalarType type) {
  switch (type) {
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Int:
    case ScalarType::Long:
    case ScalarType::BFloat16:
    case ScalarType::Float:
    case ScalarType::Double:
    case ScalarType::ComplexFloat:
    case ScalarType::ComplexDouble:
      return true;
    default:
      return false;
  }
}

std::string_view name_of_operation(Operation operation) {
  switch (operation) {
    case Operation::SUM:
      return "SUM";
    case Operation::AVG:
      return "AVG";
    case Operation::PRODUCT:
      return "PRODUCT";
    case Operation::MIN:
      return "MIN";
    case Operation::MAX:
      return "MAX";
    case Operation::BAND:
      return "BAND";
    case Operation::BOR:
      return "BOR";
    case Operation::BXOR:
      return "BXOR";
    case Operation::PREMUL_SUM:
      return "PREMUL_SUM";
    case Operation::UNUSED:
      break;
  }
  return "an unknown operation";
}

}  // namespace headway::c10d_backend
