// Types and operations that Gloo reduces, and those that it reduces in another form.
//
// Gloo has no code for 16-bit and for unsigned integers of more than 8 bits, and says so from a thread of its own once
// the reduction is under way. Here it is known before.
//
// Integers are reduced in a wider type and cut back: addition, multiplication and the bitwise operations modulo 2^32
// are the same modulo 2^16, and a wider type keeps the order for MIN and MAX. Example, SUM of int16: 30000 + 30000 is
// 60000 in int32, which is -5536 in int16, as 16-bit arithmetic has it. There is no type wider than uint64: int64 adds,
// multiplies and combines the same bits, and compares alike once the top bit is inverted.
//
// A bool is a byte of 0 or 1 in memory. Gloo would add these bytes: two true ones make a 2, and 256 of them a false
// one.

#include "gloo_form.hpp"

namespace headway::c10d_backend {

namespace {

using Operation = c10d::ReduceOp::RedOpType;
using at::ScalarType;

bool orders(Operation operation) { return operation == Operation::MIN || operation == Operation::MAX; }

bool combines_bits(Operation operation) {
  return operation == Operation::BAND || operation == Operation::BOR || operation == Operation::BXOR;
}

bool adds_or_multiplies(Operation operation) { return operation == Operation::SUM || operation == Operation::PRODUCT; }

std::optional<GlooForm> integral_form(ScalarType type, Operation operation) {
  if (!orders(operation) && !combines_bits(operation) && !adds_or_multiplies(operation)) return std::nullopt;
  switch (type) {
    case ScalarType::Bool:
      return GlooForm{type, operation == Operation::SUM ? Operation::MAX : operation};
    case ScalarType::Short:
    case ScalarType::UInt16:
      return GlooForm{ScalarType::Int, operation};
    case ScalarType::UInt32:
      return GlooForm{ScalarType::Long, operation};
    case ScalarType::UInt64:
      return GlooForm{ScalarType::Long, operation, /*flips_sign=*/orders(operation)};
    default:
      return GlooForm{type, operation};
  }
}

}  // namespace

std::optional<GlooForm> gloo_form(ScalarType type, Operation operation) {
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
      return integral_form(type, operation);
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Float:
    case ScalarType::Double:
      if (!adds_or_multiplies(operation) && !orders(operation) && operation != Operation::AVG) return std::nullopt;
      return GlooForm{type, operation};
    case ScalarType::ComplexHalf:
    case ScalarType::ComplexFloat:
    case ScalarType::ComplexDouble:
      if (operation != Operation::SUM && operation != Operation::AVG) return std::nullopt;
      return GlooForm{type == ScalarType::ComplexHalf ? ScalarType::ComplexFloat : type, operation};
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
