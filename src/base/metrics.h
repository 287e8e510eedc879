/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.h - which metrics there are, and their text for Prometheus. The
 * gateway's page, `once stats --prometheus` and all that show numbers
 * takes names, help and labels from the table below, and the text from here.
 *
 *    once__metrics_family(&w, &once__families[ONCE__FAMILY_STORE_UP]);
 *    once__metrics_value(&w, (once_bytes[]){store}, 1);
 *    ... all samples of this family, then the next family
 *    once__metrics_end(&w);
 *
 * It counts nothing itself.
 */
#ifndef ONCE_BASE_METRICS_H
#define ONCE_BASE_METRICS_H

#include <once/once.h>

enum once__metric_type {
    ONCE__COUNTER,  /* its name ends in _total                              */
    ONCE__GAUGE,    /* ... in _seconds: a number of seconds                 */
    ONCE__INFO,     /* the labels are the information, the value is 1       */
    ONCE__HISTOGRAM /* of times, its name ends in _seconds                  */
};

struct once__family {
    const char *name;
    int type;           /* enum once__metric_type                           */
    const char *labels; /* their names, with commas between                 */
    const char *help;   /* one line                                         */
};

/* clang-format off */
/* X(NAME, name, type, labels, help) */
#define ONCE__FAMILIES(X)                                                      \
    X(BUILD_INFO, "once_build_info", INFO, "version,nginx",                    \
      "Versions of Once and of the nginx that it runs in.")                    \
    X(REQUESTS, "once_requests_total", COUNTER, "store,route,status",          \
      "Guarded requests by what their client was told.")                       \
    X(WOULD, "once_would_total", COUNTER, "store,route,would",                 \
      "Requests of a dry run by what would have become of them.")              \
    X(ATTEMPTS, "once_attempts_total", COUNTER, "store,route,outcome,reason",  \
      "Attempts that were granted, by how they ended.")                        \
    X(PROBES, "once_probes_total", COUNTER, "store,route,answer",              \
      "Services asked what became of a record, by their answer.")              \
    X(ATTEMPT_DURATION, "once_attempt_duration_seconds", HISTOGRAM,            \
      "store,route", "From the grant of an attempt to its recorded end.")      \
    X(CLAIM_DURATION, "once_claim_duration_seconds", HISTOGRAM, "store,route", \
      "What a request waits for the answer to its claim.")                     \
    X(COMPLETE_DURATION, "once_complete_duration_seconds", HISTOGRAM,          \
      "store,route", "What a response waits until its outcome is recorded.")   \
    X(IN_FLIGHT, "once_attempts_in_flight", GAUGE, "store",                    \
      "Attempts that own their key now.")                                      \
    X(WAITING, "once_attempts_waiting", GAUGE, "store",                        \
      "Attempts that wait for another one now.")                               \
    X(QUEUED, "once_operations_queued", GAUGE, "store",                        \
      "Operations that wait for the store now.")                               \
    X(OLDEST_ATTEMPT, "once_oldest_attempt_timestamp_seconds", GAUGE, "store", \
      "When the oldest attempt in flight was granted, 0: none is.")            \
    X(RECORDS, "once_records", GAUGE, "store,state",                           \
      "Records of the store by state.")                                        \
    X(OLDEST_INDETERMINATE, "once_oldest_indeterminate_timestamp_seconds",     \
      GAUGE, "store",                                                          \
      "When the record that waits longest became indeterminate, 0: none is.")  \
    X(STORE_INFO, "once_store_info", INFO, "store,driver,durable",             \
      "Driver of the store; not durable: it can lose acknowledged records.")   \
    X(STORE_UP, "once_store_up", GAUGE, "store",                               \
      "1: the store is open and answered last.")                               \
    X(STORE_INCARNATION, "once_store_incarnation", GAUGE, "store",             \
      "How often the store was restored from a copy.")                         \
    X(STORE_GAP_UNTIL, "once_store_gap_until_timestamp_seconds", GAUGE,        \
      "store", "Until when keys may be unknown after a restore, 0: none are.") \
    X(BATCH_DURATION, "once_store_batch_duration_seconds", HISTOGRAM, "store", \
      "What the store takes for a batch of operations.")                       \
    X(OPERATIONS, "once_store_operations_total", COUNTER, "store",             \
      "Operations that the store answered.")                                   \
    X(BATCHES, "once_store_batches_total", COUNTER, "store",                   \
      "Batches with which the store was asked.")                               \
    X(UNANSWERED, "once_store_unanswered_total", COUNTER, "store",             \
      "Batches that the store did not answer.")                                \
    X(REPEATED, "once_store_repeated_total", COUNTER, "store",                 \
      "Operations repeated after that.")                                       \
    X(BUSY, "once_store_busy_total", COUNTER, "store",                         \
      "Operations refused because the queue was full.")                        \
    X(CORRUPT, "once_store_corrupt_total", COUNTER, "store",                   \
      "Answers that a record fails its checksum.")                             \
    X(ROLLBACKS, "once_store_rollbacks_total", COUNTER, "store",               \
      "Times that the store was found to have forgotten grants.")              \
    X(RENEWED, "once_leases_renewed_total", COUNTER, "store",                  \
      "Leases that were renewed.")                                             \
    X(REAPED, "once_records_reaped_total", COUNTER, "store",                   \
      "Records whose lease had expired.")                                      \
    X(FORGOTTEN, "once_records_forgotten_total", COUNTER, "store",             \
      "Records that expired and were deleted.")                                \
    X(SWEEP_LAST, "once_sweep_last_timestamp_seconds", GAUGE, "store",         \
      "When expired records were last looked for, 0: not yet.")                \
    X(SWEEP_STOPPED, "once_sweep_stopped", GAUGE, "store",                     \
      "1: nothing is forgotten, because the store's clock is not trusted.")    \
    X(GROUP_RECORDS, "once_group_records", GAUGE, "group,state",               \
      "Records by group and state.")                                           \
    X(GROUP_EXPIRED, "once_group_expired_records", GAUGE, "group",             \
      "Records that have expired.")                                            \
    X(GROUP_BYTES, "once_group_result_bytes", GAUGE, "group",                  \
      "Bytes of all results.")                                                 \
    X(GROUP_OLDEST, "once_group_oldest_indeterminate_timestamp_seconds",       \
      GAUGE, "group",                                                          \
      "When the oldest indeterminate record of the group was granted.")
/* clang-format on */

enum once__family_name {
#define ONCE__FAMILY_ROW(name, text, type, labels, help) ONCE__FAMILY_##name,
    ONCE__FAMILIES(ONCE__FAMILY_ROW)
#undef ONCE__FAMILY_ROW
        ONCE__FAMILY_COUNT
};

extern const struct once__family once__families[ONCE__FAMILY_COUNT];

/* ---- Buckets of histograms ----------------------------------------------- */

enum { ONCE__BUCKETS_MAX = ONCE_LATENCY_BUCKETS };

/* Bucket i counts what took less than `us[i]`, the last one all others. */
struct once__buckets {
    size_t n; /* of the bounds; there is one bucket more */
    uint64_t us[ONCE__BUCKETS_MAX - 1];
};

extern const struct once__buckets once__store_buckets;   /* 64 us .. 4 s    */
extern const struct once__buckets once__service_buckets; /* 5 ms .. 300 s   */

size_t once__bucket_of(const struct once__buckets *b, uint64_t us);

/* ---- The text ------------------------------------------------------------ */

/* Zero it, set the first three, and end with once__metrics_end(). */
struct once__metrics_text {
    void (*put)(void *user, const char *text, size_t size);
    void *user;
    int openmetrics; /* 1: OpenMetrics 1.0, 0: the text format 0.0.4 */
    const struct once__family *family;
    int begun; /* the family's HELP and TYPE were written */
};

/* What the following samples belong to. Nothing is written of a family without
 * samples. Each family may come once. */
void once__metrics_family(struct once__metrics_text *w,
                          const struct once__family *f);
/* One sample. `labels`: as many values as the family has labels, in its order,
 * of any bytes; they are escaped. */
void once__metrics_value(struct once__metrics_text *w, const once_bytes *labels,
                         uint64_t value);
/* The same of a value in milliseconds, shown as seconds. */
void once__metrics_ms(struct once__metrics_text *w, const once_bytes *labels,
                      uint64_t ms);
/* A histogram: `counts` of b->n + 1 buckets, each for itself. */
void once__metrics_histogram(struct once__metrics_text *w,
                             const once_bytes *labels,
                             const struct once__buckets *b,
                             const uint64_t *counts, uint64_t sum_us);
void once__metrics_end(struct once__metrics_text *w);

/* The Content-Type of the text. */
const char *once__metrics_content_type(int openmetrics);

#endif /* ONCE_BASE_METRICS_H */
