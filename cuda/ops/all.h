// Every op.
#pragma once

#include "list.h"
#include "log_softmax.h"
#include "log_softmax_cotangent.h"
#include "log_softmax_tangent.h"
#include "logsumexp.h"
#include "masked.h"
#include "row_pairs.h"
#include "softmax.h"
#include "softmax_tangent.h"
