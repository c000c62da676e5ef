#include "runtime/ops_attention.h"

#include <new>

#include "base/result.h"
#include "parfait/ops.h"

namespace parfait {

Result<Done> Ops::attention(ConstMatrix q, ConstMatrix k, ConstMatrix v,
                            const AttentionOptions& options, Matrix y) try {
  return runtime::attention(*state_, q, k, v, options, y);
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory,
                    "attention: there is not enough memory for {} queries and {} keys", q.rows,
                    k.rows);
}

}  // namespace parfait
