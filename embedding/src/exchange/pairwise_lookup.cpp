// SPDX-License-Identifier: Apache-2.0

// Lookups by messages between pairs of ranks, for reading.
//
// Idea: a server does not know what its peers look up, and when. In an all-to-all every rank has to take part in each
// batch of every other one, so the slowest rank delays all. Here a rank sends *questions*, the keys of a batch, to the
// owners of the keys, and each owner answers with rows as soon as it gets to it. A batch is finished once all its
// owners have answered.
//
// Example: 3 ranks. Rank 0 has keys of ranks 1 and 2. It sends each of them a question, and posts a receive for each
// answer, whose size it knows. Rank 2 is busy and answers later than rank 1. Batches of rank 1 do not notice.
//
// Messages (words of 64 bits in the byte order of the host):
//   question  `kFirstWords` words: number of the batch, version, words that follow, bytes of the answer, and the first
//             of the words that follow. The others come in a second message. They are the number of keys of each merged
//             table (tables of equal options that share storage), then two words per key, table by table, as
//             BatchDevice::encode() writes them.
//   answer    16 bytes, of which the first is 1 if the owner has the version; then the rows, table by table, as floats.
// A question without keys is not sent.
// Invariants: answers of one rank to another may come in any order, so their `match` has the number of the batch.
//   Rows are in the order of the keys, which are sorted by owner; each key is sent once per batch.
//   A receive writes to its memory until it is done, so memory outlives the batch (`Unfinished`).
// Complexity: 2 messages per rank that owns keys, 3 if there are more than about a hundred; 16 bytes a key and dim
//   floats back.

#include "headway/embedding/pairwise_lookup.hpp"

#include "headway/base/status.hpp"
#include "headway/embedding/routed_batch.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace headway::embedding {

namespace {

constexpr std::size_t kFirstWords = 256, kHeaderWords = 4, kWordsPerKey = 2;
constexpr std::size_t kFirstKeyWords = kFirstWords - kHeaderWords;
constexpr std::size_t kAnswerHeaderBytes = 16;
constexpr comm::DataType kBytes = 0;  // Messages are bytes to the group.

// Bit 61 of a message's `match` marks those of lookups, and bits 59 and 60 their kind.
constexpr std::uint64_t kQuestionMatch = std::uint64_t{1} << 61;
constexpr std::uint64_t rest_match(std::uint64_t number) { return kQuestionMatch | std::uint64_t{1} << 59 | number; }
constexpr std::uint64_t answer_match(std::uint64_t number) { return kQuestionMatch | std::uint64_t{1} << 60 | number; }

using Words = std::vector<std::uint64_t>;

void expect_ok(comm::Operation const& operation) {
  if (auto const status = operation.status(); !status.ok()) throw base::OperationError(status);
}

}  // namespace

/// Operations that have not ended, and the memory that they use.
class PairwiseLookup::Unfinished {
 public:
  void add(comm::OperationPtr operation, std::shared_ptr<void const> memory) {
    if (!operation->done()) operations_.emplace_back(std::move(operation), std::move(memory));
  }
  void forget_ended() {
    std::erase_if(operations_, [](auto const& each) { return each.first->done(); });
  }
  /// Gives the memory to the group, which frees it when the operations end.
  void release(comm::Group& group) {
    for (auto& [operation, memory] : operations_) {
      try {
        group.on_done(*operation, [kept = std::pair(operation, memory)] {});
      } catch (std::exception const&) {  // No thread was left for the callback.
        static_cast<void>(group.wait(*operation));
      }
    }
    operations_.clear();
  }

 private:
  std::vector<std::pair<comm::OperationPtr, std::shared_ptr<void const>>> operations_;
};

struct PairwiseLookup::Version {
  std::vector<ReadTable> tables;
  std::map<std::uint32_t, std::size_t> merged_of{};  ///< Merged table of each table id.
};

struct PairwiseLookup::Question {
  std::array<std::uint64_t, kFirstWords> first{};
  Words rest{};
  int source = -1;
  comm::OperationPtr receive{};  ///< Receives `first`, then `rest`.
  bool is_woken = false;         ///< Its receive wakes somebody.

  [[nodiscard]] std::uint64_t number() const { return first[0]; }
  [[nodiscard]] std::uint64_t version() const { return first[1]; }
  [[nodiscard]] std::size_t num_words() const { return first[2]; }
  [[nodiscard]] std::size_t answer_bytes() const { return first[3]; }
};

class PairwiseLookup::Batch {
 public:
  Batch(RoutedBatch routed, std::uint64_t of_version, std::shared_ptr<Unfinished> unfinished)
      : keys(std::move(routed)), version(of_version), unfinished_(std::move(unfinished)) {}
  Batch(Batch const&) = delete;
  Batch& operator=(Batch const&) = delete;
  ~Batch() {
    for (auto& answer : answers) {
      if (answer.receive != nullptr) unfinished_->add(std::move(answer.receive), answer.bytes.owner);
    }
  }

  /// Rows of another rank on their way here.
  struct RowsOfRank {
    int rank;
    Block<std::byte> bytes;
    comm::OperationPtr receive;  ///< Null once they are here.
    bool is_woken = false;
    std::chrono::steady_clock::time_point arrived{};  ///< When poll() has found them.
  };

  RoutedBatch keys;
  std::uint64_t version;
  std::vector<RowsOfRank> answers{};  ///< One of each rank that was asked.
  bool is_finished = false;

 private:
  std::shared_ptr<Unfinished> unfinished_;
};

void PairwiseLookup::DeleteBatch::operator()(Batch* batch) const { delete batch; }

PairwiseLookup::PairwiseLookup(comm::Group* group, std::shared_ptr<base::ThreadPool> thread_pool)
    : group_(group),
      device_(make_host_batch_device(std::move(thread_pool))),
      rank_(group == nullptr ? 0 : group->rank()),
      size_(group == nullptr ? 1 : group->size()),
      unfinished_(std::make_shared<Unfinished>()) {
  if (size_ > 1) receive_question();
}

PairwiseLookup::~PairwiseLookup() {
  if (next_ != nullptr) questions_.push_back(std::move(next_));
  for (auto& each : questions_) unfinished_->add(each->receive, each);
  if (group_ != nullptr) unfinished_->release(*group_);
}

void PairwiseLookup::add_version(std::uint64_t version, std::vector<ReadTable> tables) {
  base::expects(!has_version(version), "version " + std::to_string(version) + " of the tables is there");
  auto added = std::make_unique<Version>(Version{.tables = std::move(tables)});
  for (std::size_t merged = 0; merged < added->tables.size(); ++merged) {
    for (auto const id : added->tables[merged].tables) {
      base::expects(added->merged_of.emplace(id, merged).second,
                    "table " + std::to_string(id) + " is merged into two tables");
    }
  }
  versions_.emplace(version, std::move(added));
}

void PairwiseLookup::remove_version(std::uint64_t version) { versions_.erase(version); }

PairwiseLookup::BatchPtr PairwiseLookup::begin(std::uint64_t version, std::span<Feature const> features) {
  auto const found = versions_.find(version);
  base::expects(found != versions_.end(), "there is no version " + std::to_string(version) + " of the tables");
  auto const& read = *found->second;
  std::vector<std::size_t> dims;
  for (auto const& table : read.tables) dims.push_back(table.rows->dim());
  BatchPtr batch(
      new Batch({device_, features, read.merged_of, dims, static_cast<std::uint32_t>(size_)}, version, unfinished_));
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) ask(*batch, rank, num_begun_);
  }
  ++num_begun_;
  return batch;
}

void PairwiseLookup::ask(Batch& batch, int rank, std::uint64_t number) {
  auto const& tables = versions_.at(batch.version)->tables;
  auto const owner = static_cast<std::size_t>(rank);
  std::size_t num_keys = 0, num_floats = 0;
  for (std::size_t merged = 0; merged < tables.size(); ++merged) {
    std::size_t const count = batch.keys.keys(merged, owner).size();
    num_keys += count;
    num_floats += count * tables[merged].rows->dim();
  }
  if (num_keys == 0) return;
  std::size_t const num_words = tables.size() + kWordsPerKey * num_keys;
  auto const words = std::make_shared<Words>(kHeaderWords + std::max(num_words, kFirstKeyWords));
  auto bytes = device_->block<std::byte>(kAnswerHeaderBytes + num_floats * sizeof(float));
  (*words)[0] = number;
  (*words)[1] = batch.version;
  (*words)[2] = num_words;
  (*words)[3] = bytes.size();
  std::size_t next = kHeaderWords;
  for (std::size_t merged = 0; merged < tables.size(); ++merged) {
    (*words)[next++] = batch.keys.keys(merged, owner).size();
  }
  for (std::size_t merged = 0; merged < tables.size(); ++merged) {
    EncodePiece const piece{.keys = batch.keys.keys(merged, owner), .words = words->data() + next};
    device_->encode({&piece, 1});
    next += kWordsPerKey * piece.keys.size();
  }
  auto const all = std::as_bytes(std::span(*words));
  std::size_t const first_bytes = kFirstWords * sizeof(std::uint64_t);
  auto receive = group_->receive(bytes.span, rank, answer_match(number), kBytes);
  unfinished_->add(group_->send(all.first(first_bytes), rank, kQuestionMatch, kBytes), words);
  if (all.size() > first_bytes) {
    unfinished_->add(group_->send(all.subspan(first_bytes), rank, rest_match(number), kBytes), words);
  }
  batch.answers.push_back({.rank = rank, .bytes = std::move(bytes), .receive = std::move(receive)});
}

bool PairwiseLookup::poll(Batch& batch) {
  if (batch.is_finished) return true;
  bool has_all = true;
  for (auto& answer : batch.answers) {
    if (answer.receive == nullptr) continue;
    if (!group_->test(*answer.receive)) {
      has_all = false;
      continue;
    }
    expect_ok(*answer.receive);
    answer.receive = nullptr;
    answer.arrived = std::chrono::steady_clock::now();
    if (answer.bytes.span[0] == std::byte{0}) {
      throw VersionMissing("rank " + std::to_string(answer.rank) + " has no version " + std::to_string(batch.version));
    }
  }
  unfinished_->forget_ended();
  if (!has_all) return false;
  take_rows(batch);
  batch.is_finished = true;
  return true;
}

void PairwiseLookup::take_rows(Batch& batch) {
  auto const& tables = versions_.at(batch.version)->tables;
  std::vector<std::byte const*> next(static_cast<std::size_t>(size_));  // The rows of each rank that are not taken.
  for (auto const& answer : batch.answers) {
    next[static_cast<std::size_t>(answer.rank)] = answer.bytes.data() + kAnswerHeaderBytes;
  }
  for (std::size_t merged = 0; merged < tables.size(); ++merged) {
    for (std::size_t rank = 0; rank < next.size(); ++rank) {
      auto const out = batch.keys.rows(merged, rank);
      if (static_cast<int>(rank) == rank_) {
        read_rows(tables[merged], batch.keys.keys(merged, rank), out);
      } else if (!out.empty()) {
        std::memcpy(out.data(), next[rank], out.size_bytes());
        next[rank] += out.size_bytes();
      }
    }
  }
}

void PairwiseLookup::read_rows(ReadTable const& table, Keys const& keys, std::span<float> out) {
  if (keys.size() == 0) return;
  auto const rows = device_->block<RowId>(keys.size());
  table.rows->find(keys, rows.span, {});
  table.rows->gather(keys, rows.span, out);
  if (table.reads_unknown_as_zeros) device_->mask_rows(rows.span, table.rows->dim(), out);
}

int PairwiseLookup::missing_rank(Batch const& batch) const {
  auto const found = std::ranges::find_if(batch.answers, [](auto const& each) { return each.receive != nullptr; });
  return found == batch.answers.end() ? -1 : found->rank;
}

std::map<int, std::chrono::steady_clock::time_point> PairwiseLookup::arrivals(Batch const& batch) const {
  std::map<int, std::chrono::steady_clock::time_point> arrivals;
  for (auto const& answer : batch.answers) {
    if (answer.receive == nullptr) arrivals.emplace(answer.rank, answer.arrived);
  }
  return arrivals;
}

std::size_t PairwiseLookup::num_bags(Batch const& batch, std::size_t merged) const {
  return batch.keys.num_bags(merged);
}

void PairwiseLookup::expand(Batch const& batch, std::size_t merged, std::span<float> out) {
  base::expects(batch.is_finished, "expand: the batch is not finished");
  batch.keys.expand(merged, out);
}

void PairwiseLookup::receive_question() {
  next_ = std::make_shared<Question>();
  next_->receive = group_->receive_any(std::as_writable_bytes(std::span(next_->first)), kQuestionMatch, kBytes);
}

std::size_t PairwiseLookup::answer() {
  if (size_ == 1) return 0;
  std::size_t num_answers = 0;
  while (group_->test(*next_->receive)) {
    expect_ok(*next_->receive);
    auto question = std::exchange(next_, nullptr);
    receive_question();
    question->source = question->receive->source();
    if (question->num_words() > kFirstKeyWords) {
      question->rest.resize(question->num_words() - kFirstKeyWords);
      question->is_woken = false;
      question->receive = group_->receive(std::as_writable_bytes(std::span(question->rest)), question->source,
                                          rest_match(question->number()), kBytes);
      questions_.push_back(std::move(question));
    } else {
      reply(*question);
      ++num_answers;
    }
  }
  for (auto& question : questions_) {
    if (!group_->test(*question->receive)) continue;
    expect_ok(*question->receive);
    reply(*question);
    question = nullptr;
    ++num_answers;
  }
  std::erase(questions_, nullptr);
  unfinished_->forget_ended();
  return num_answers;
}

void PairwiseLookup::reply(Question const& question) {
  auto bytes = device_->block<std::byte>(question.answer_bytes());
  std::memset(bytes.data(), 0, kAnswerHeaderBytes);
  if (auto const found = versions_.find(question.version()); found != versions_.end()) {
    bytes.span[0] = std::byte{1};
    Words words(question.first.begin() + kHeaderWords,
                question.first.begin() +
                    static_cast<std::ptrdiff_t>(kHeaderWords + std::min(question.num_words(), kFirstKeyWords)));
    words.insert(words.end(), question.rest.begin(), question.rest.end());
    write_rows(*found->second, words, bytes.span.subspan(kAnswerHeaderBytes));
  }
  unfinished_->add(group_->send(bytes.span, question.source, answer_match(question.number()), kBytes), bytes.owner);
}

void PairwiseLookup::write_rows(Version const& version, std::span<std::uint64_t const> words,
                                std::span<std::byte> out) {
  std::size_t next = version.tables.size();
  for (std::size_t merged = 0; merged < version.tables.size(); ++merged) {
    auto const& table = version.tables[merged];
    std::size_t const count = words[merged];
    auto const ids = device_->block<std::uint64_t>(count);
    auto const table_ids = device_->block<std::uint32_t>(count), counts = device_->block<std::uint32_t>(count);
    DecodePiece const piece{.words = words.data() + next,
                            .num_keys = count,
                            .ids = ids.data(),
                            .tables = table_ids.data(),
                            .counts = counts.data()};
    device_->decode({&piece, 1});
    next += kWordsPerKey * count;
    std::size_t const num_floats = count * table.rows->dim();
    // Blocks are aligned to 64 bytes, and the header has 16, so floats are aligned.
    read_rows(table, {.ids = ids.span, .tables = table_ids.span, .counts = counts.span, .are_unique = true},
              {reinterpret_cast<float*>(out.data()), num_floats});
    out = out.subspan(num_floats * sizeof(float));
  }
}

void PairwiseLookup::wake_on_arrival(std::span<Batch* const> batches, std::function<void()> const& wake) {
  if (size_ == 1) return;
  auto const arm = [&](auto& each) {
    if (each.receive == nullptr || std::exchange(each.is_woken, true)) return;
    group_->on_done(*each.receive, wake, std::chrono::microseconds(0));
  };
  arm(*next_);
  for (auto& question : questions_) arm(*question);
  for (auto* const batch : batches) {
    for (auto& answer : batch->answers) arm(answer);
  }
}

}  // namespace headway::embedding
