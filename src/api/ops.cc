#include "parfait/ops.h"

#include "base/result.h"
#include "base/text.h"
#include "runtime/ops.h"

namespace parfait {

Ops::Ops(std::unique_ptr<runtime::Ops> state) : state_(std::move(state)) {}
Ops::~Ops() = default;
Ops::Ops(Ops&&) noexcept = default;
Ops& Ops::operator=(Ops&&) noexcept = default;

Result<Ops> Ops::make(unsigned threads, std::optional<Isa> isa) {
  std::vector<Isa> isas = machine_isas();
  if (isa) {
    if (std::ranges::find(isas, *isa) == isas.end())
      return make_error(ErrorCode::plan_isa, "{} was asked for, but this machine does not offer it",
                        isa_name(*isa));
    isas = isas_within(*isa);
  }
  return Ops(std::make_unique<runtime::Ops>(threads, std::move(isas)));
}

}  // namespace parfait
