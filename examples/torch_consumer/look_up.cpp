// SPDX-License-Identifier: Apache-2.0

// Looks ids up in a table that Python trained, by the operators of Headway, without Python.
// Usage: look_up LIBRARY INPUT OUTPUT [PROGRAM]
//   LIBRARY  libheadway_operators.so (headway.ops.OPERATOR_LIBRARY)
//   INPUT    what torch.save() wrote: a dictionary with the table (table, dim, seed, records) and a batch (ids,
//   lengths)
//   OUTPUT   gets the embeddings, for torch.load()
//   PROGRAM  a model that AOTInductor compiled, with an ExportableLookup named "items"; its first output is saved
//   instead
//
// tests/python/embedding/test_exportable_lookup.py runs it, and compares the bits with those of HashTableCollection.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/custom_class.h>
#include <torch/serialize.h>

#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using Arguments = std::unordered_map<std::string, c10::IValue>;

/// Makes an object of torch.classes.headway.
c10::IValue make(std::string const& name, Arguments const& arguments) {
  auto const type = torch::getCustomClass("__torch__.torch.classes.headway." + name);
  auto object = c10::IValue(c10::ivalue::Object::create(c10::StrongTypePtr(nullptr, type), 1));
  type->getMethod("__init__")({object}, arguments);
  return object;
}

c10::IValue call(c10::IValue const& object, std::string const& method, std::vector<c10::IValue> arguments) {
  arguments.insert(arguments.begin(), object);
  return object.toObject()->type()->getMethod(method)(std::move(arguments));
}

c10::impl::GenericDict read(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + " cannot be read");
  return torch::pickle_load({std::istreambuf_iterator<char>(file), {}}).toGenericDict();
}

void write(std::string const& path, at::Tensor const& tensor) {
  auto const bytes = torch::pickle_save(tensor);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error(path + " cannot be written");
}

void run(std::vector<std::string> const& arguments) {
  if (arguments.size() < 3) throw std::runtime_error("usage: look_up LIBRARY INPUT OUTPUT [PROGRAM]");
  if (dlopen(arguments[0].c_str(), RTLD_NOW) == nullptr) throw std::runtime_error(dlerror());

  auto const input = read(arguments[1]);
  // The id of the table, which is a part of its keys. HashTableCollection takes the CRC-32 of its name.
  auto const number = input.at("table").toTensor().item<std::int64_t>();
  auto const table = make("EmbeddingTable", {{"dim", input.at("dim")}, {"seed", input.at("seed")}});
  std::vector<at::Tensor> records;
  for (c10::IValue const each : input.at("records").toList()) records.push_back(each.toTensor());
  call(table, "import_records", {records, 0, 1});  // All records: this process is rank 0 of 1.

  auto const type = torch::getCustomClass("__torch__.torch.classes.headway.EmbeddingTable");
  c10::impl::GenericList tables(type);
  tables.push_back(table);
  auto const lookup = make("TableLookup", {{"tables", tables},
                                           {"table_ids", std::vector<std::vector<std::int64_t>>{{number}}},
                                           {"names", std::vector<std::string>{"item"}},
                                           {"feature_tables", std::vector<std::int64_t>{number}},
                                           {"poolings", std::vector<std::optional<std::string>>{"sum"}}});

  auto const ids = input.at("ids").toTensor(), lengths = input.at("lengths").toTensor();
  if (arguments.size() > 3) {
    call(lookup, "register_as", {"items"});  // The compiled program finds it by this name.
    torch::inductor::AOTIModelPackageLoader loader(arguments[3]);
    return write(arguments[2], loader.run({ids, lengths}).front());
  }
  torch::jit::Stack stack{lookup, std::vector<at::Tensor>{ids}, std::vector<at::Tensor>{lengths},
                          std::vector<std::optional<at::Tensor>>{std::nullopt}};
  c10::Dispatcher::singleton().findSchemaOrThrow("headway::look_up", "").callBoxed(&stack);
  write(arguments[2], stack.front().toTensorVector().front());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
  } catch (std::exception const& error) {
    std::cerr << "look_up: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
