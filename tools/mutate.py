#!/usr/bin/env python3
"""Breaks one line of src/gateway, src/recipe, src/model, src/cache, src/kernels, src/engine or src/plan at a time and expects a named test to fail.

    tools/mutate.py [NAME ...]        all mutations, or those named; run by hand, minutes a mutation on a small machine

Each mutation is applied to the working tree, which must be clean there, the test program is built with the `dev` preset,
the named test is run, and the file is put back whatever happens. Exit status 1 when a test does not notice.
"""
import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPU = "src/kernels/cpu_device.cc"
ATTENTION = "src/kernels/attention.cc"
OPS = "src/kernels/reference/ops.cc"
PACK = "src/kernels/reference/pack.cc"
FORWARD = "src/model/forward.cc"
ACCEPTANCE = "src/engine/acceptance.cc"
BUDGET = "src/engine/draft_budget.cc"
CALIBRATION = "src/engine/calibration.cc"
SPECULATION = "src/engine/speculation.cc"
SCHEDULER = "src/engine/scheduler.cc"
SEGMENT = "src/cache/segments/segment.cc"
STORE = "src/cache/segments/segment_store.cc"
UPKEEP = "src/cache/segments/segment_store_upkeep.cc"

# name: (file, what stands there once, what replaces it, test program with its module where that is another name, test)
MUTATIONS = {
    "the walk over drafts is not taken back": (
        "src/engine/scheduler.cc", "options_.defect != Defect::kKeepWalk", "walked == 0", "plan",
        "EngineGates.T10_1EveryAnswerIsInItsGrammar"),
    "masks are taken whose ever they are": (
        "src/engine/step.h", "slot == the_slot && generation == the_generation && step == the_step",
        "slot.value() + the_slot.value() + the_generation + the_step.value() >= 0", "plan", "EngineGates.EveryMutationIsCaught"),
    "going back forgets the trigger": (
        "src/engine/grammar.cc", "state_ = *first;", "state_.behind = first->behind;", "engine/engine_policies",
        "Grammar.T10_2RollbackEqualsAFreshReplay"),
    "the mask is not applied": (
        "src/engine/sampler.cc", "!mask.empty() && !apply(mask, scores)", "mask.size() > scores.size()", "engine/engine_threads",
        "EngineSource.InACrowdEachKeepsToItsGrammar"),
    "a refused keyword is let pass": (
        "src/recipe/schema_enforce.cc", "entry->keyword.use == kRefused && ", "entry->keyword.name.empty() && ", "recipe",
        "SchemaKeywords.RefusedWhereTheyStand"),
    "a reference to what was not looked at is let pass": (
        "src/recipe/schema_enforce.cc", "target->boolean() != nullptr || walked_.contains(target)", "!target->is_null()", "recipe",
        "SchemaKeywords.ReferencesLeadWhereKeywordsPutSchemas"),
    "a parameter is taken for the whole schema": (
        "src/recipe/call_grammar.cc", "const bool whole = leaves_definitions(root);", "const bool whole = root.is_null();",
        "engine/engine_policies", "AnswerGrammar.ReferencesOfAStrictToolMeanWhatTheyMeantInItsSchema"),
    "blanks have no bound": (
        "src/recipe/call_grammar.cc", "[\\x20\\x0A\\x0D\\x09]{1,40}", "[\\x20\\x0A\\x0D\\x09]+", "engine/engine_policies",
        "AnswerGrammar.C063_RunsOfBlanksAreBounded"),
    "a record of another key is served": (
        STORE, "head->segment != segment.name || head->key != key || head->space != space", "head->space != space", "cache",
        "SegmentStoreTest.ABlockInAnothersPlaceIsAMiss"),
    "rows behind a file's end stay known": (
        SEGMENT, "if ((std::uint64_t{row.page} + row.pages) * kDiskPage <= segment_bytes) {", "if (row.pages > 0) {", "cache",
        "SegmentStoreTest.ACutFileLosesWhatWasCutOffOnly"),
    "a lease never ends": (
        STORE, "clock_.now() > its.end", "its.end < opened_", "cache", "SegmentStoreTest.ALeaseOutlivesExpiryAndEndsInTime"),
    "a purged tenant's bytes stay on the disk": (
        UPKEEP, "!spaces.contains(space) || !is_purged(space, row.sequence)", "is_purged(space, row.sequence)", "cache",
        "SegmentStoreTest.APurgedNamespaceStaysPurged"),
    "what nobody owns stays after a purge": (
        UPKEEP, "    GALLEY_CHECK_OK(erase_unowned(*file, range));\n", "    (void)range;\n", "cache",
        "SegmentStoreTest.APurgeErasesPagesThatNobodyOwns"),
    "a copy under another name stops a purge": (
        STORE, "      segments_[segment.id] = nullptr;\n", "", "cache", "SegmentStoreTest.ForeignFilesAreLeftAlone"),
    "budgets of tenants count what is staged only": (
        STORE, "      used += use->second.bytes;\n", "", "cache", "SegmentStoreTest.ATenantOverItsBudgetStopsWriting"),
    "a footer before what it names is durable": (
        STORE, "return rows.empty() ? Result<void>{} : file.sync();", "return {};", "plan/plan_store",
        "StoreGates.KeepsWhatItAcknowledgedAndServesNothingElse"),
    "records that no journal told of are not written again": (
        STORE, "    GALLEY_CHECK_OK(file.write(offset, record.bytes()));\n", "", "plan/plan_store",
        "StoreGates.KeepsWhatItAcknowledgedAndServesNothingElse"),
    "files of others are taken for the server's": (
        "src/gateway/file_store.cc", "return name.size() == recipe::kRandomIdBytes && is_alphanumeric(name);",
        "return is_alphanumeric(name);", "gateway", "FileStoreTest.WhatOthersKeepInTheFolderStays"),
    "a lost database is begun anew": (
        "src/gateway/file_store.cc", "!fs::is_empty(files, error) && !error", "!fs::is_empty(files, error) && error", "gateway",
        "FileStoreTest.ALostDatabaseRefusesTheStartAndKeepsTheFiles"),
    "a batch that waits is tried for ever": (
        "src/gateway/batch_worker.cc", "store_.next_batch(tenant_, waiting_)", "store_.next_batch(tenant_)", "gateway",
        "BatchWorkerTest.ABatchThatWaitsHoldsUpNoOther"),
    "any key passes": (
        "src/gateway/api_keys.cc", "CRYPTO_memcmp(hash.data(), key.hash.data(), hash.size()) == 0", "!hash.empty()", "gateway",
        "ApiKeys.FindsAKeyByItsHash"),
    "no key passes too": (
        "src/gateway/routes.cc", "!options_.keys.empty() && key == nullptr", "!presented_key(head).empty() && key == nullptr",
        "gateway", "KeysTest.OnlyKnownKeysPass"),
    "a place is kept when its answer ends": (
        "src/gateway/generation_reply.cc", "  place_.reset();\n", "", "gateway", "KeysTest.LimitsOfAKeyHoldUntilItsAnswersEnd"),
    "a refusal costs a request": (
        "src/gateway/key_quota.cc", "  if (auto refused = refusal(key, tenant, now)) {\n",
        "  if (auto refused = refusal(key, tenant, now)) {\n    tenant.requests.take(1, now);\n", "gateway",
        "KeyQuotaTest.RequestsComeBackWithTime"),
    "the first limit is told, not the longest": (
        "src/gateway/key_quota.cc", "(!longest || wait > longest->retry_after)", "!longest", "gateway",
        "KeyQuotaTest.OfSeveralLimitsTheLongestWaitIsTold"),
    "more than a minute's worth is saved": (
        "src/gateway/key_quota.cc", "std::min(level_ + per_second_ * seconds(now - at_), per_second_ * kSecondsPerMinute)",
        "level_ + per_second_ * seconds(now - at_)", "gateway", "KeyQuotaTest.RequestsComeBackWithTime"),
    "a format is left to a source without grammars": (
        "src/gateway/codec.cc", "if (!source.enforces_grammars()) {", "if (source.enforces_grammars()) {", "gateway",
        "Unenforcing.WhatCannotBeKeptIsRefusedByName"),
    "llama.cpp's cache is everybody's": (
        "src/gateway/sources/dialect_llama_cpp.cc", "return generation.tenant.empty() && generation.user.empty();", "return generation.user.empty();",
        "gateway", "LlamaCpp.WhoIsNamedNeitherSharesItsCacheNorLearnsOfIt"),
    "a share for every user that a client names": (
        "src/gateway/routes.cc", "prepared.generation.tenant = tenant;", "prepared.generation.tenant = tenant + prepared.request.user;",
        "gateway", "KeysTest.ATenantIsTheKeyWhoeverItsUserIs"),
    "a completion loses its first line break": (
        "src/recipe/completions_request.cc", "{.stage = StartStage::kContentContinuation,", "{.stage = StartStage::kAnswer,", "recipe",
        "CompletionsRequest.ReadsWhatIsToBeContinued"),
    "window of 17 keys": (
        ATTENTION, "last - static_cast<std::int64_t>(args.window) + 1", "last - static_cast<std::int64_t>(args.window)", "model",
        "GoldenCheck.Passes/v4_short"),
    "compressed row visible one token late": (
        "src/kernels/selection.cc", "static_cast<std::size_t>((args.positions[row] + 1) / args.ratio)",
        "static_cast<std::size_t>(args.positions[row] / args.ratio)", "model", "GoldenCheck.Passes/v41_short"),
    "HCA entry visible one token early": (
        ATTENTION, "static_cast<std::size_t>((args.positions[row] + 1) / args.ratio)",
        "static_cast<std::size_t>((args.positions[row] + 2) / args.ratio)", "model", "GoldenCheck.Passes/v4_f32_nq"),
    "a batch's first window for all its rows": (
        ATTENTION, "place + static_cast<std::size_t>(window_of(args, row).first - all.first)", "place", "kernels",
        "EveryIsa/AttentionTest.SeesWindowAndCompressedRows/amx"),
    "no tile has a subnormal code": (
        "src/kernels/avx512/widen-inl.h", "return small == 0;", "return true;", "kernels", "EveryIsa/MatmulTest.WideningIsExact/amx"),
    "weights of two terms": (
        "src/kernels/amx/rows.cc", "_tile_dpbf16ps(0, 6, 7);", "", "kernels", "TileKernelsTest.WeightsKeepTheirLastBits"),
    "padding weighs like a key": (
        "src/kernels/amx/rows.cc", "if (j < args_.count) {", "{", "kernels", "TileKernelsTest.AttentionIsTheSoftMaxWithSink"),
    "one scale for both halves": (
        "src/kernels/amx/rows.cc", "scales[apart]", "scales[0]", "kernels", "TileKernelsTest.UnpacksWhatThePackerWrote"),
    "the best scores end a bin early": (
        "src/kernels/selection.cc", "of_edge = std::min<std::size_t>(left, bins[edge]);", "of_edge = bins[edge] > left ? 0 : bins[edge];",
        "kernels", "SelectionTest.BestScoresAreTheReferences"),
    "a gate is not cut": (
        "src/kernels/rows-inl.h", "const Vec g = minimum(limit, gate);", "const Vec g = gate;", "kernels", "RowKernelsTest.SwigluOfEveryCount"),
    "compressed rows of the sequence before": (
        ATTENTION, "      place_.clear();\n", "", "kernels", "EveryIsa/AttentionTest.SeesWindowAndCompressedRows/avx2"),
    "one scale for four tiles": (
        "src/kernels/tile-inl.h", "tile % kUnitTiles * kGroupRows", "0 * tile", "kernels",
        "EveryIsa/MatmulTest.AgreesWithExactSums/avx2"),
    "infinite weights packed": (
        "src/kernels/packed_weight.cc", "return odd == 0;", "return odd < 2;", "kernels",
        "EveryIsa/MatmulTest.WhatHasNoPackedFormIsLeftToTheReference/avx2"),
    "a part that begins inside a group": (
        "src/kernels/product.cc", "return {c + first % kGroupRows,", "return {c,", "kernels",
        "EveryIsa/MatmulTest.OutputsFromAnywhere/avx2"),
    "no sink in fast attention": (
        "src/kernels/rows-inl.h", "Vec sum = exponential(sub(load(first), set(top)));", "Vec sum = mul(load(first), set(0.0F));",
        "kernels", "RowKernelsTest.AttentionIsTheSoftMaxWithSink"),
    "stored rows written below the hit": (
        CPU, "end % a.ratio == 0 && end > a.write_floors[i]", "end % a.ratio == 0 && a.write_floors[i] >= 0", "model",
        "State.AReplayLeavesStoredBlocksAsTheyAre"),
    "no attention sink": (
        OPS, "double sum = std::exp(static_cast<double>(sink) - largest);", "double sum = 0;", "model",
        "GoldenCheck.Passes/ops"),
    "mHC mix transposed": (OPS, "comb[j * n + k] * old[j * kChannels + c]", "comb[k * n + j] * old[j * kChannels + c]", "model", "GoldenCheck.Passes/ops"),
    "higher index wins a tie": (OPS, "x > y : a < b", "x > y : a > b", "kernels", "Selection.TheLowerIndexWinsATie"),
    "newest block is no candidate": (
        OPS, "best.back() = std::numeric_limits<float>::infinity();", "", "kernels",
        "Selection.CandidatesKeepTheNewestBlockAndTheLowerOfEqualOnes"),
    "rings without room for drafts": (
        "src/model/plan.cc", "cache.ring_rows = config.window + drafts + 1;", "cache.ring_rows = config.window;", "model",
        "State.RejectedDraftsLeaveNoTrace"),
    "YaRN factor ignored": (
        OPS, "plain / static_cast<float>(scaling->factor) * ramp", "plain * ramp", "model", "GoldenCheck.Passes/ops"),
    "first scale of a row for all its blocks": (
        "src/kernels/weight.cc", "scale_at(weight, scale_row + begin / weight.block)", "scale_at(weight, scale_row)", "model",
        "GoldenCheck.Passes/ops"),
    "no routed_scaling_factor": (OPS, "/ (sum + kEps) * scale;", "/ (sum + kEps) * (0 * scale + 1);", "model", "GoldenCheck.Passes/ops"),
    "router weights not normalised": (OPS, "/ (sum + kEps) * scale;", "/ (0 * sum + kEps + 1) * scale;", "model", "GoldenCheck.Passes/ops"),
    "router bias in the weights": (
        OPS, "finish_routing(scores, scale, routing);\n}\n\nvoid route_fixed",
        "finish_routing(selection, scale, routing);\n}\n\nvoid route_fixed", "model", "GoldenCheck.Passes/ops"),
    "engram hash one position off": (
        CPU, "= a.histories[i][p - back];", "= a.histories[i][std::max<std::int64_t>(p - back - 1, 0)];", "model",
        "GoldenCheck.Passes/v41_short"),
    "engram gate without sigmoid": (
        OPS, "sigmoid(std::copysign(std::sqrt(std::max(std::fabs(d), kFloor)), d))",
        "std::copysign(std::sqrt(std::max(std::fabs(d), kFloor)), d)", "model", "GoldenCheck.Passes/v41_short"),
    "output not rotated back": (FORWARD, "rope(o, heads, width, frequencies, 1, true);", "rope(o, heads, width, frequencies, 1, false);", "model",
                                "GoldenCheck.Passes/v41_short"),
    "V4.1 collapses with its own coefficients": (
        FORWARD, ".pre = v41 ? pre_ : next_pre_,", ".pre = v41 && post == nullptr ? pre_ : next_pre_,", "model", "GoldenCheck.Passes/v41_short"),
    "draft rows blind to each other": (
        FORWARD, ".block_rows_see_all = stage >= 0 && config_.drafts_by(DraftKind::kDspark),", "", "model",
        "GoldenCheck.Passes/v4_f32_nq"),
    "MTP takes the token at p": (
        FORWARD, "subspan(static_cast<std::size_t>(first) + 1, rows)", "subspan(static_cast<std::size_t>(first), rows)",
        "model", "Mtp.DraftsAsTheReference"),
    "high nibble first": (PACK, "codes[c] | (high << 4U)", "high | (static_cast<unsigned>(codes[c]) << 4U)", "kernels",
                          "Pack.TheBytesOfARow"),
    "fused experts the other way round": (
        "src/model/tensor_names.cc", '{"mlp.experts.gate_up_proj", "w1", "w3", false}',
        '{"mlp.experts.gate_up_proj", "w3", "w1", false}', "model", "CheckpointNames.TransformersV4IsTheSameModel"),
    "windows behind a hit look at the slot's last request": (
        "src/engine/network_device.cc", ".window_begin = slot.window_begin,", ".window_begin = 0,", "engine/engine_threads",
        "EngineSource.AHitAnswersAsTheColdPromptDid"),
    "promises taken at their word": (
        BUDGET, "double{draft.survival} * trust", "double{draft.survival} + 0 * trust", "engine/engine_policies",
        "DraftBudgetTest.KnowsWhatBraggingConfidencesAreWorth"),
    "never tried again": (
        BUDGET, "    load.trial_left = kTrial;", "    load.trial_left = 0;", "engine/engine_policies",
        "DraftBudgetTest.NoticesWhenDraftsGetBetter"),
    "a step without drafter is no choice": (
        BUDGET, "!load.gain || *load.gain >= 1.0", "!load.gain || *load.gain >= 0.0", "engine/engine_policies",
        "DraftBudgetTest.StopsDraftingWhereThatIsSlower"),
    "a stale point of the learnt curve": (
        "src/engine/step_cost.cc", "steps_ - one.second.newest > kForgotten", "steps_ - one.second.newest > 2 * kForgotten",
        "engine/engine_policies", "LearntCurveTest.ForgetsWhatNoStepIsAt"),
    "the first row's Markov bias for all": (
        CPU, "(piece.row + t) * a.block + i", "0 * (piece.row + t) + i", "model",
        "Families/NetworkProperty.DraftsOfABatchAreThoseOfEachAlone/v41"),
    "drafts with another draw's noise": (
        "src/engine/sampler.cc", "    return 0;\n  }\n  return choose(adjust(logits, sampling, counts), sampling, draw);",
        "    return 0;\n  }\n  return choose(adjust(logits, sampling, counts), sampling, {draw.seed, draw.choice, draw.position + 1});",
        "engine/engine_threads", "SingleSequence.DraftsFollowTheNoiseOfTheDraw"),
    "a fork without the block that was begun": (
        "src/engine/network_device.cc", "if (slot.prompt() % kBlockTokens != 0) {", "if (slot.prompt() % kBlockTokens == 1) {",
        "engine/engine_threads", "EngineSource.ChoicesShareTheirPrompt"),
    "a fork's windows begin behind its prompt": (
        "src/engine/network_device.cc", "    slot.window_begin = from.window_begin;\n", "", "engine/engine_threads",
        "EngineSource.ChoicesShareTheirPrompt"),
    "who followed an ended request waits for ever": (
        "src/engine/scheduler.cc", "  release_followers(request);\n  if (request.slot) {", "  if (request.slot) {", "plan",
        "EngineGates.TinyPoolsNeverDeadlock"),
    "a shared block that nobody counts": (
        "src/cache/prefix_cache.cc", "  GALLEY_ASSERT(at(block).users > 0);\n  hold(block);", "  GALLEY_ASSERT(at(block).users > 0);",
        "plan", "EngineGates.RandomMachinesAnswerAsTheOracle"),
    "a stopped fetch goes on": (
        "src/engine/store_traffic.cc", "  const MutexLock lock(fetch.mutex);\n  if (fetch.stopped) {\n    return FetchEnd::kRefused;\n  }\n",
        "  const MutexLock lock(fetch.mutex);\n", "engine/engine_threads", "StoreTrafficTest.AStoppedFetchWritesNothing"),
    "all tenants share a namespace of the disk": (
        "src/engine/block_names.cc", "    return tenant;\n", "    return \"tenant\";\n", "engine/engine_threads",
        "StoreTrafficTest.AnotherTenantAnotherLayoutAndAnotherArithmeticGetNothing"),
    "blocks on disk do not say whose weights made them": (
        "src/engine/block_names.cc", ".weights = weights,", ".weights = weights.substr(0, 0),", "engine/engine_threads",
        "EngineSource.AnswersGoOnFromDiskAsWithoutIt"),
    "approximate blocks are stored as exact": (
        "src/engine/scheduler.cc", "request.exact = blocks == 0 || options_.exact_windows;", "request.exact = true;",
        "engine/engine_threads", "EngineSource.ApproximateBlocksOnDiskAreNotForExactWindows"),
    "what is fetched counts although it did not verify": (
        "src/engine/store_traffic.cc", "*view) : end_of(view.error());",
        "*view) : end_of(view.error()) == FetchEnd::kWhole ? FetchEnd::kFailed : FetchEnd::kWhole;",
        "engine/engine_threads", "EngineSource.ADamagedDiskShortensHitsAndChangesNoAnswer"),
    "a full queue of writes is no bound": (
        "src/engine/store_traffic.cc", "if (!bytes || queued_.load(std::memory_order_relaxed) >= queue_max_) {", "if (!bytes) {",
        "engine/engine_threads", "StoreTrafficTest.AFullQueueDropsAndCounts"),
    "another tenant's prompt is nobody's": (
        "src/engine/scheduler.cc", "return reason.other_scope ?", "return reason.tokens > kBlockTokens ?", "engine/engine_threads",
        "EngineSource.TellsWhyThePromptWasNotInTheCache"),
    "what others store shows in a client's reason": (
        "src/cache/block_history.cc", "contents_.contains(wanted.content)};\n", "contents_.contains(wanted.content)};\n  if (out.other_scope) {\n    return out;\n  }\n",
        "cache", "BlockHistory.WhatOthersStoreChangesNoClientsReason"),
    "a trial of drafts verifies none": (
        "src/engine/draft_budget.cc", "judges ? std::max(best.drafts, rows) : best.drafts", "judges ? best.drafts : best.drafts + 0",
        "engine/engine_policies", "DraftBudgetTest.ADrafterThatBraggedIsJudgedAnew"),
    "what drafts were worth long ago counts for ever": (
        "src/engine/draft_budget.cc", "    trust_.value *= 1.0 - kTrustStep;\n    trust_.weight *= 1.0 - kTrustStep;\n", "",
        "engine/engine_policies", "DraftBudgetTest.ADrafterThatBraggedIsJudgedAnew"),
    "a fork fails with its leader": (
        "src/engine/scheduler.cc", "    begin_anew(request);\n", "    end(request, {.error = Error{.code = Code::kUnavailable, .what = \"lost\"}});\n",
        "engine/engine_policies", "Scheduler.AForkWhoseLeaderFailedBeginsAnew"),
    "the first of those that follow leads, whatever its class": (
        "src/engine/scheduler.cc", "*std::ranges::min_element(left, {}, &Request::priority)", "left.front()", "engine/engine_policies",
        "Scheduler.TheBestOfThoseThatFollowLeadsNext"),
    "a hit that is too short ended at 0": (
        "src/engine/scheduler.cc", ", .token = token}", "}", "engine/engine_policies", "Scheduler.AHitThatWouldBeComputedAgainIsTooShort"),
    "whatever a device tells of drafts is believed": (
        "src/engine/scheduler.cc", "row.drafts_accepted > row.drafts_verified ||", "false ||", "engine/engine_policies",
        "Scheduler.ResultsThatCannotBeAreAnError"),
    "a block that is gone hides its older siblings": (
        "src/cache/block_history.cc", "  if (children->second.empty()) {", "  if (true) {", "cache",
        "BlockHistory.WhatIsOlderIsComparedOnceTheNewestIsGone"),
    "a batch counts lines, not answers": (
        "src/gateway/batch_run.cc", "return prepared ? static_cast<std::size_t>(prepared->request.sampling.n) : 1;", "return 1;", "gateway",
        "BatchRunTest.TheWindowCountsEveryChoice"),
    "a request with many choices takes one place": (
        "src/gateway/key_quota.cc", "  tenant.running += count;\n", "", "gateway", "KeyQuotaTest.EveryChoiceTakesAPlace"),
    "each choice has the reply's whole bound": (
        "src/gateway/generation_reply.cc", "if (reply_.waiting_bytes_ > ", "if (waiting_.bytes() > ", "gateway",
        "GenerationReplyTest.ChoicesShareTheBoundOfWhatWaits"),
    "what had to go was never there": (
        "src/cache/block_history.cc", "  evicted_[place_of(key)] = key;\n", "", "cache", "BlockHistory.TellsWhy"),
    "blocks without memory are given again": (
        "src/cache/prefix_cache.cc", "  if (one.withdrawn) {\n    return;\n  }\n", "", "cache",
        "PrefixCache.WithdrawnBlocksAreNeverGivenAgain"),
    "a state is saved when its windows are gone": (
        "src/engine/network_device.cc", " && written - end <= back) {", ") {", "engine/engine_threads",
        "EngineSource.ATurnGoesOnBehindTheStateOfTheLast"),
    "a state of windows that are being rebuilt": (
        "src/engine/network_device.cc", "std::max(slot.first_position, slot.write_floor - 1)", "slot.first_position",
        "engine/engine_threads", "EngineSource.NoStateIsOfWindowsThatAreBeingRebuilt"),
    "a state is given and not read": (
        "src/engine/network_device.cc", "  if (start.state != nullptr) {\n", "  if (start.state != nullptr && slot.done) {\n", "engine/engine_threads",
        "EngineSource.ATurnGoesOnBehindTheStateOfTheLast"),
    "states are kept for ever": (
        "src/cache/state_store.cc", "now - kept_.front().used >= kStateLife", "false", "cache", "StateStore.KeepsWhatIsUsedAndForgetsTheRest"),
    "who was preempted forgets its windows": (
        "src/engine/scheduler.cc", "    request.state = row.state;\n    request.state_end = row.state_end;\n", "", "engine/engine_threads",
        "EngineSource.PreemptedRequestsGoOnAsIfNothingHadBeen"),
    "a reply ends before its last choice": (
        "src/recipe/reply.cc", "return --left_ == 0;", "return --left_ <= 1;", "gateway", "GenerationReplyTest.SeveralChoicesAreOneReply"),
    "a radix pass too few": (SPECULATION, "kPasses = 3", "kPasses = 2", "engine/engine_policies", "Allocation.IsTheRuleAsWritten"),
    "a missing confidence is none": (
        SPECULATION, "confidence <= 0.0F ? 0.0F : 1.0F", "0.0F", "engine/engine_policies",
        "Allocation.AMissingConfidenceCountsAsOneWhereThereIsADraft"),
    "a graph half filled": (
        SPECULATION, "return objective.filled(k);", "return k;", "engine/engine_policies", "Budget.FillsTheGraphThatIsPaidForAnyhow"),
    "search ends at the first hill": (
        SPECULATION, "      best = k;\n    }", "      best = k;\n    } else {\n      break;\n    }", "engine/engine_policies",
        "Budget.IsTheExhaustiveMaximum"),
    "a budget costs nothing": (
        SPECULATION, "(seconds(budget) + cost_.budget_seconds())", "seconds(budget)", "engine/engine_policies",
        "Budget.TakesTheFixedPathWhereABudgetDoesNotPay"),
    "rejected drafts replaced from the target": (
        ACCEPTANCE, ".next = draw_residual(p, q, uniform(draw, DrawPurpose::kResidual))",
        ".next = draw_from(p, uniform(draw, DrawPurpose::kResidual))", "engine/engine_policies",
        "VerifyRatio.AForbiddenDraftIsARejectionNotACut"),
    "rounding taken for a residual": (
        ACCEPTANCE, "mass > kResidualMassMin", "mass > 0.0", "engine/engine_policies", "DrawResidual.IsTheTargetWhereNothingIsLeft"),
    "drafts of a position share their noise": (
        ACCEPTANCE, "std::uint64_t{nth} << 8U", "0 * std::uint64_t{nth}", "plan",
        "SpeculationLaw.IsKeptWhereAPositionIsDraftedAgain"),
    "unverified drafts taken for rejected": (
        CALIBRATION, "rows.verified(row) > k && ", "", "engine/engine_policies", "FitTemperatures.CountsTheRowsThatVerifiedThePosition"),
    "positions fitted apart": (
        CALIBRATION, "before[row] *= known_or_one(", "before[row] *= 0 * known_or_one(", "engine/engine_policies",
        "FitTemperatures.FindsWhatMadeTheConfidencesOverSure"),
    "noise makes a larger graph faster": (
        "src/engine/step_cost.cc", "    point.seconds = slowest;\n", "", "engine/engine_policies", "ThetaTest.ALargerGraphIsNeverFaster"),
    "budget of the same step": (
        "src/plan/speculation_laws.cc", "const auto seen = std::exchange(older_, std::exchange(newer_, ranked));",
        "const auto& seen = ranked;", "plan", "SpeculationLaw.IsKeptByEveryShippedPolicyUnderTheRatioTest"),
    "no off switch": (
        SPECULATION, "(options.off_switch &&", "(false && options.off_switch &&", "plan",
        "SpeculationGain.WithTheSwitchNoLoadLosesHalfAPercent"),
    "exact mode emits what it drafted": (
        ACCEPTANCE, ".next = targets[accepted]}", ".next = accepted < drafts.size() ? drafts[accepted] : targets[accepted]}", "plan",
        "SpeculationExact.IsPlainSamplingBitForBit"),
}


def run(*command):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def caught(name):
    file, old, new, program, test = MUTATIONS[name]
    if run("git", "diff", "--quiet", "HEAD", "--", file).returncode != 0:
        sys.exit(f"{file} has changes that are not committed")
    path = ROOT / file
    text = path.read_text()
    if text.count(old) != 1:
        sys.exit(f"{name}: {file} holds {text.count(old)} times: {old}")
    try:
        path.write_text(text.replace(old, new))
        module, _, target = program.rpartition("/")
        build = run("cmake", "--build", "--preset", "dev", "--target", f"{target}_test")
        if build.returncode != 0:
            print(build.stdout)
            sys.exit(f"{name}: does not compile, so it proves nothing")
        result = run(f"build/dev/src/{module or target}/{target}_test", f"--gtest_filter={test}")
        if "[ RUN " not in result.stdout:
            sys.exit(f"{name}: there is no test {test}")
        return result.returncode != 0
    finally:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *MUTATIONS])
    names = parser.parse_args().names or list(MUTATIONS)
    missed = 0
    for name in names:
        noticed = caught(name)
        missed += not noticed
        print(f"{'caught' if noticed else 'MISSED'}  {name}  ({MUTATIONS[name][4]})", flush=True)
    print(f"{len(names) - missed} caught, {missed} missed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
