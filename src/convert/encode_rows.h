// Rows that come from one or several layers of a source, encoded into one tensor group of an
// output: read, encoded and written a panel at a time on all threads. The bytes do not depend on
// the threads or the panels.
#ifndef PARFAIT_CONVERT_ENCODE_ROWS_H_
#define PARFAIT_CONVERT_ENCODE_ROWS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "convert/items.h"
#include "formats/encode.h"
#include "runtime/threads.h"

namespace parfait::convert {

struct RowsToEncode {
  const formats::Checkpoint& source;
  const Item& item;  // with segments
  formats::WeightShape shape;
  formats::EncodeSettings settings;
  const formats::Encoder& encoder;
  // Decodes rows of what was encoded: tensors are the buffers, whole, in the order of
  // encoder.tensors().
  std::function<void(const std::vector<std::byte*>& tensors, std::uint64_t first,
                     std::uint64_t count, float* out)>
      decode;
  std::string_view target;  // the format's name, for messages
};

struct EncodeRowsOptions {
  // Bits of decoded values are compared; a difference is an error that names the first.
  enum class Compare { no, yes } compare = Compare::no;
  std::uint64_t max_memory = std::uint64_t{2} << 30;
  // Rows from this one on are left alone: to try a layer's first ones.
  std::uint64_t row_limit = UINT64_MAX;
  std::function<bool(double)> progress;  // the share done; false cancels
};

// Bytes of tensor t (of encoder.tensors()) from `at` on. Called from any thread.
using PutBytes = std::function<Result<Done>(std::size_t t, std::uint64_t at, ByteSpan bytes)>;

Result<Done> encode_rows(const RowsToEncode& rows, runtime::Threads& threads,
                         const EncodeRowsOptions& options, const PutBytes& put);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_ENCODE_ROWS_H_
