// SPDX-License-Identifier: Apache-2.0

// Gated normalisation, forward and backward, against an oracle in float64 that follows the definition.
//
// Every form (combination of row and gate), norm and element type is tested. Widths are around the limits of the
// kernels' shapes: one pack (vector load), several per thread, more than registers hold, and rows that are not aligned.
// grad_weight, a sum over rows, must have the same bits in each run.

#include "headway/kernels/gated_norm.hpp"

#include "gated_norm_oracle.hpp"
#include "layer_backend.hpp"

#include <stdexcept>

namespace headway::kernels {
namespace {

/// kConcat: silu(gate), x and norm(x) silu(gate) side by side. kConcatNorm: the same with norm(x) in the place of x.
constexpr GateForm kForms[] = {GateForm::kNone, GateForm::kNormThenGate, GateForm::kGateThenNorm, GateForm::kConcat,
                               GateForm::kConcatNorm};

/// Shape and options of a test. There are `gap` elements between the rows of inputs. A residual is a gradient that the
/// backward pass adds to grad_x.
struct NormCase {
  NormKind norm = NormKind::kLayer;
  GateForm form = GateForm::kNone;
  std::int64_t num_rows = 1, num_columns = 1, gap = 0;
  bool has_weights = true, has_residual = false;
};

class GatedNorms : public LayerKernels {
 protected:
  std::mt19937 random_{7};

  template <class Element>
  static std::vector<double> row_of(DrawnRows<Element> const& rows, std::int64_t row) {
    std::vector<double> numbers;
    for (std::int64_t column = 0; column < rows.num_columns; ++column) numbers.push_back(rows.at(row, column));
    return numbers;
  }

  template <class T>
  static std::vector<double> ones_or(bool is_there, DrawnRows<T> const& rows, double otherwise) {
    return is_there ? row_of(rows, 0) : std::vector<double>(static_cast<std::size_t>(rows.num_columns), otherwise);
  }

  /// Compares both passes with the oracle; weights are of type `Weight`.
  template <class Element, class Weight>
  void expect_as_defined(NormCase const& of) {
    std::int64_t const rows = of.num_rows, columns = of.num_columns, out_columns = num_parts(of.form) * columns;
    DrawnRows<Element> const x(random_, rows, columns, of.gap), gate(random_, rows, columns, 2 * of.gap);
    DrawnRows<Element> const grad_out(random_, rows, out_columns, of.gap), residual(random_, rows, columns);
    DrawnRows<Weight> const weight(random_, 1, columns), bias(random_, 1, columns);
    GatedNormOracle oracle{.norm = of.norm,
                           .form = of.form,
                           .eps = 1e-3,
                           .weight = ones_or(of.has_weights, weight, 1),
                           .bias = ones_or(of.has_weights, bias, 0)};
    std::vector<double> const nothing(static_cast<std::size_t>(columns));
    for (std::int64_t row = 0; row < rows; ++row) {
      oracle.add_row(row_of(x, row), row_of(gate, row), row_of(grad_out, row),
                     of.has_residual ? row_of(residual, row) : nothing);
    }

    bool const has_gate = of.form != GateForm::kNone;
    GatedNorm const args{
        .type = type_of<Element>(),
        .norm = of.norm,
        .form = of.form,
        .eps = 1e-3,
        .num_rows = rows,
        .num_columns = columns,
        .x = {backend_->array(x.elements).data(), x.stride},
        .gate = {has_gate ? backend_->array(gate.elements).data() : nullptr, has_gate ? gate.stride : 0},
        .weight_type = type_of<Weight>(),
        .weight = of.has_weights ? backend_->array(weight.elements).data() : nullptr,
        .bias = of.has_weights ? backend_->array(bias.elements).data() : nullptr};
    auto const out = backend_->room<Element>(rows * out_columns);
    auto const statistics = backend_->room<Real<Element>>(2 * rows);
    backend_->gated_norm(args, out.data(), statistics.data());
    expect_near<Element>(out, oracle.out, "out");
    expect_near<Real<Element>>(statistics, oracle.statistics, "statistics");

    auto const grad_x = backend_->room<Element>(rows * columns), grad_gate = backend_->room<Element>(rows * columns);
    auto const grad_weight = backend_->room<Weight>(columns), grad_bias = backend_->room<Weight>(columns);
    backend_->gated_norm_backward(
        {.forward = args,
         .statistics = statistics.data(),
         .grad_out = {backend_->array(grad_out.elements).data(), grad_out.stride},
         .residual = {of.has_residual ? backend_->array(residual.elements).data() : nullptr, columns},
         .grad_x = grad_x.data(),
         .grad_gate = has_gate ? grad_gate.data() : nullptr,
         .grad_weight = of.has_weights ? grad_weight.data() : nullptr,
         .grad_bias = of.has_weights ? grad_bias.data() : nullptr});
    expect_near<Element>(grad_x, oracle.grad_x, "grad_x");
    if (has_gate) expect_near<Element>(grad_gate, oracle.grad_gate, "grad_gate");
    if (!of.has_weights) return;
    expect_near<Weight>(grad_weight, oracle.grad_weight, "grad_weight");
    expect_near<Weight>(grad_bias, oracle.grad_bias, "grad_bias");
  }

  void expect_as_defined_in_all_types(NormCase const& of) {
    SCOPED_TRACE(testing::Message() << "norm " << static_cast<int>(of.norm) << ", form " << static_cast<int>(of.form)
                                    << ", " << of.num_rows << " rows of " << of.num_columns << " columns");
    for_each_element_type([&]<class Element>() {
      expect_as_defined<Element, Element>(of);
      expect_as_defined<Element, Real<Element>>(of);
    });
  }
};

TEST_P(GatedNorms, AreAsDefinedInEachFormAndType) {
  for (auto const norm : {NormKind::kLayer, NormKind::kRms}) {
    for (auto const form : kForms) {
      expect_as_defined_in_all_types({.norm = norm, .form = form, .num_rows = 29, .num_columns = 48});
      expect_as_defined_in_all_types(
          {.norm = norm, .form = form, .num_rows = 5, .num_columns = 6, .has_residual = true});
    }
  }
}

TEST_P(GatedNorms, TakeRowsOfAnyWidth) {
  for (std::int64_t const columns : {1, 7, 128, 129, 512, 1000, 1024, 2056}) {
    expect_as_defined_in_all_types({.form = GateForm::kConcat, .num_rows = 9, .num_columns = columns});
  }
  expect_as_defined<Bfloat16, float>({.form = GateForm::kNormThenGate, .num_rows = 5, .num_columns = 8192});
  expect_as_defined<Bfloat16, Bfloat16>({.form = GateForm::kConcat, .num_rows = 5, .num_columns = 8200});
  expect_as_defined<float, float>({.form = GateForm::kConcatNorm, .num_rows = 4, .num_columns = 8192});
  expect_as_defined<double, double>({.form = GateForm::kGateThenNorm, .num_rows = 4, .num_columns = 8193});
}

TEST_P(GatedNorms, ReadRowsThatLieApart) {
  for (std::int64_t const gap : {1, 8}) {
    for (auto const form : kForms) {
      expect_as_defined_in_all_types({.form = form, .num_rows = 11, .num_columns = 64, .gap = gap});
    }
  }
}

TEST_P(GatedNorms, NeedNoWeights) {
  for (auto const form : kForms) {
    expect_as_defined_in_all_types(
        {.form = form, .num_rows = 11, .num_columns = 40, .has_weights = false, .has_residual = true});
  }
}

TEST_P(GatedNorms, AreTheSameBitsEachTime) {
  constexpr std::int64_t kRows = 700, kColumns = 64;
  DrawnRows<float> const x(random_, kRows, kColumns), grad_out(random_, kRows, kColumns);
  DrawnRows<float> const weight(random_, 1, kColumns);
  GatedNorm const args{.num_rows = kRows,
                       .num_columns = kColumns,
                       .x = {backend_->array(x.elements).data(), kColumns},
                       .weight = backend_->array(weight.elements).data()};
  auto const out = backend_->room<float>(kRows * kColumns), statistics = backend_->room<float>(2 * kRows);
  backend_->gated_norm(args, out.data(), statistics.data());
  std::vector<float> first;
  for (int call = 0; call < 2; ++call) {
    auto const grad_x = backend_->room<float>(kRows * kColumns), grad_weight = backend_->room<float>(kColumns);
    backend_->gated_norm_backward({.forward = args,
                                   .statistics = statistics.data(),
                                   .grad_out = {backend_->array(grad_out.elements).data(), kColumns},
                                   .grad_x = grad_x.data(),
                                   .grad_weight = grad_weight.data()});
    std::vector<float> const found(grad_weight.begin(), grad_weight.end());
    if (call == 0) first = found;
    EXPECT_EQ(found, first);
  }
}

TEST_P(GatedNorms, HaveGradientsOfEqualNumbersHoweverLarge) {
  constexpr std::int64_t kColumns = 5;
  std::vector<float> const x(kColumns, 0x1p119F), grad_out{1, 2, 3, 4, 5};
  GatedNorm const args{.eps = 1e-6, .num_rows = 1, .num_columns = kColumns, .x = {backend_->array(x).data(), kColumns}};
  auto const out = backend_->room<float>(kColumns), statistics = backend_->room<float>(2);
  backend_->gated_norm(args, out.data(), statistics.data());
  auto const grad_x = backend_->room<float>(kColumns);
  backend_->gated_norm_backward({.forward = args,
                                 .statistics = statistics.data(),
                                 .grad_out = {backend_->array(grad_out).data(), kColumns},
                                 .grad_x = grad_x.data()});
  // The variance is 0, so the gradient is that of the output less its mean, times 1 / sqrt(eps) = 1000.
  expect_near<float>(grad_x, {-2000, -1000, 0, 1000, 2000}, "grad_x");
}

TEST_P(GatedNorms, OfNoRowsHaveGradientsOfZero) {
  auto const weight = backend_->array(std::vector<float>(8, 1));
  auto const grad_weight = backend_->room<float>(8), grad_bias = backend_->room<float>(8);
  GatedNorm const args{.num_columns = 8, .weight = weight.data(), .bias = weight.data()};
  backend_->gated_norm(args, nullptr, nullptr);
  backend_->gated_norm_backward({.forward = args, .grad_weight = grad_weight.data(), .grad_bias = grad_bias.data()});
  for (float const each : grad_weight) EXPECT_EQ(each, 0);
  for (float const each : grad_bias) EXPECT_EQ(each, 0);
}

TEST_P(GatedNorms, RefuseWhatDoesNotFit) {
  GatedNorm const no_columns{.num_rows = 1};
  EXPECT_THROW(backend_->gated_norm(no_columns, nullptr, nullptr), std::invalid_argument);
  GatedNorm const no_gate{.form = GateForm::kConcat, .num_rows = 1, .num_columns = 4};
  EXPECT_THROW(backend_->gated_norm(no_gate, nullptr, nullptr), std::invalid_argument);
  // Weights must be of the type of x, float32 here, or of the type of the arithmetic.
  GatedNorm const other_weights{.num_columns = 4, .weight_type = ElementType::kBfloat16};
  EXPECT_THROW(backend_->gated_norm(other_weights, nullptr, nullptr), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(OnEachBackend, GatedNorms, testing::ValuesIn(layer_backends()), name_of_backend<LayerBackend>);

}  // namespace
}  // namespace headway::kernels
