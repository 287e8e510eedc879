/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_verdict.c - sets of statuses, and the table of docs/http.md, 3: a test
 * for each row, for every status that the row is about, and at the end for
 * every combination the rules that no row may break.
 */
#include "calls/http/http.h"

#include "t.h"

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

static once__statuses set_of(const char *const *words)
{
    once__statuses set = {{0}, {0}};

    for (; *words != NULL; words++)
        T_EQ(once__statuses_add(&set, text(*words), NULL), ONCE_OK);
    return set;
}

/* The default of once_final. */
static once__statuses every(void)
{
    static const char *const words[] = {"2xx", "3xx", "4xx", "5xx", NULL};

    return set_of(words);
}

static once__statuses only_success(void)
{
    static const char *const words[] = {"2xx", NULL};

    return set_of(words);
}

/* 0, or the number that two of the lists have. */
static int made(const once__statuses *final, const once__statuses *released,
                const once__statuses *unknown, once__rules *rules)
{
    const once__status_lists lists = {final, released, unknown};
    once__status_clash clash;
    int rc = once__rules_make(&lists, rules, &clash);

    T_EQ(rc, clash.status == 0 ? ONCE_OK : ONCE_EINVAL);
    return clash.status;
}

/* The rules of a once_final, with the defaults of the other lists. */
static once__rules rules_of(once__statuses final)
{
    once__rules rules;

    T_EQ(made(&final, NULL, NULL, &rules), 0);
    return rules;
}

static const char *judged_by(int observed, int status, const char *word,
                             const once__rules *rules)
{
    static const char *const deeds[] = {"complete", "mark", "release",
                                        "give up"};
    static const char *const kinds[] = {"", " success", " failure"};
    static char out[32];
    once__verdict v = once__judge(observed, status, text(word), rules);

    snprintf(out, sizeof(out), "%s%s", deeds[v.action], kinds[v.kind]);
    return out;
}

static const char *judged(int observed, int status, const char *word,
                          once__statuses final)
{
    once__rules rules = rules_of(final);

    return judged_by(observed, status, word, &rules);
}

static int is_declined(int status)
{
    return status == 401 || status == 408 || status == 421 || status == 425 ||
           status == 429;
}

static int is_gateways(int status)
{
    return status == 502 || status == 504 || (status >= 520 && status <= 524) ||
           status == 529 || status == 530;
}

/* ---- Sets --------------------------------------------------------------- */

static void an_empty_set_has_nothing(void)
{
    once__statuses set = {{0}, {0}};
    int status;

    for (status = -100; status <= 1000; status++)
        T_EQ(once__statuses_has(&set, status), 0);
    T_EQ(once__statuses_all(&set), 0);
}

static void a_status_is_added_alone(void)
{
    char word[16];
    int status, other;

    for (status = 200; status <= 599; status++) {
        once__statuses set = {{0}, {0}};

        snprintf(word, sizeof(word), "%d", status);
        T_EQ(once__statuses_add(&set, text(word), NULL), ONCE_OK);
        for (other = 0; other <= 1000; other++)
            T_EQ(once__statuses_has(&set, other), other == status);
    }
}

static void a_class_is_added_whole_and_alone(void)
{
    char word[] = "?xx";
    int class, status;

    for (class = 2; class <= 5; class ++) {
        once__statuses set = {{0}, {0}};

        word[0] = (char)('0' + class);
        T_EQ(once__statuses_add(&set, text(word), NULL), ONCE_OK);
        for (status = 0; status <= 1000; status++)
            T_EQ(once__statuses_has(&set, status), status / 100 == class);
    }
}

static void adding_keeps_what_was_there(void)
{
    static const char *const words[] = {"2xx", "404", "404", "599", NULL};
    once__statuses set = set_of(words);

    T_OK(once__statuses_has(&set, 200) && once__statuses_has(&set, 299));
    T_OK(once__statuses_has(&set, 404) && once__statuses_has(&set, 599));
    T_OK(!once__statuses_has(&set, 403) && !once__statuses_has(&set, 598));
}

static void other_words_are_refused_and_change_nothing(void)
{
    static const char *const bad[] = {
        "",     "2",         "20",  "2x",  "2xx ", " 2xx", "2000",
        "2xxx", "xxx",       "0xx", "6xx", "099",  "600",  "999",
        "000",  "20x",       "2x0", "2XX", "x00",  "-20",  "+20",
        "2 0",  "2.0",       "20a", "1xx", "100",  "199",  "200,",
        "all",  "2\xc3\xa9", "4xy", "4yx", "/00",  "1:0",  "20/",
    };
    once_error err;
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        once__statuses set = {{0}, {0}}, none = {{0}, {0}};

        T_EQ(once__statuses_add(&set, text(bad[i]), &err), ONCE_EINVAL);
        T_EQ(err.code, ONCE_EINVAL);
        T_MEM(&set, &none, sizeof(set));
    }
}

static void all_means_every_status_from_200_on(void)
{
    once__statuses set = every();
    int status;

    T_EQ(once__statuses_all(&set), 1);
    for (status = 200; status <= 599; status++) {
        once__statuses hole = set;
        int bit = status - 100;

        hole.bits[bit / 64] &= ~(UINT64_C(1) << (bit % 64));
        T_EQ(once__statuses_all(&hole), 0);
    }
}

/* ---- Rules -------------------------------------------------------------- */

static once__statuses released_set(const char *const *words)
{
    once__statuses set = {{0}, {0}};

    for (; *words != NULL; words++)
        T_EQ(once__statuses_add_released(&set, text(*words), NULL), ONCE_OK);
    return set;
}

static void a_released_status_is_a_number_from_300_on(void)
{
    static const char *const bad[] = {"2xx", "3xx",  "4xx",  "5xx", "100",
                                      "199", "200",  "299",  "600", "",
                                      "40",  "4290", "503 ", "off", "30x"};
    once_error err;
    char word[16];
    size_t i;
    int status;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        once__statuses set = {{0}, {0}}, none = {{0}, {0}};

        T_EQ(once__statuses_add_released(&set, text(bad[i]), &err),
             ONCE_EINVAL);
        T_MEM(&set, &none, sizeof(set));
    }
    for (status = 300; status <= 599; status++) {
        once__statuses set = {{0}, {0}};

        snprintf(word, sizeof(word), "%d", status);
        T_EQ(once__statuses_add_released(&set, text(word), &err), ONCE_OK);
        T_EQ(once__statuses_has(&set, status), 1);
    }
}

static once__statuses unknown_set(const char *const *words)
{
    once__statuses set = {{0}, {0}};

    for (; *words != NULL; words++)
        T_EQ(once__statuses_add_unknown(&set, text(*words), NULL), ONCE_OK);
    return set;
}

static void an_unknown_status_is_a_number_from_400_on(void)
{
    static const char *const bad[] = {"2xx",  "4xx", "5xx", "200",
                                      "399",  "600", "",    "5020",
                                      "502 ", "off", "50x"};
    once_error err;
    char word[16];
    size_t i;
    int status;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        once__statuses set = {{0}, {0}}, none = {{0}, {0}};

        T_EQ(once__statuses_add_unknown(&set, text(bad[i]), &err), ONCE_EINVAL);
        T_MEM(&set, &none, sizeof(set));
    }
    for (status = 400; status <= 599; status++) {
        once__statuses set = {{0}, {0}};

        snprintf(word, sizeof(word), "%d", status);
        T_EQ(once__statuses_add_unknown(&set, text(word), &err), ONCE_OK);
        T_EQ(once__statuses_has(&set, status), 1);
    }
}

static void without_lists_the_defaults_count(void)
{
    once__rules rules;
    int status;

    T_EQ(made(NULL, NULL, NULL, &rules), 0);
    T_EQ(once__statuses_all(&rules.final), 1);
    for (status = 0; status <= 700; status++)
        T_EQ(once__statuses_has(&rules.released, status), is_declined(status));
    for (status = 0; status <= 700; status++)
        T_EQ(once__statuses_has(&rules.unknown, status), is_gateways(status));
}

static void a_number_elsewhere_leaves_the_default_of_unknown(void)
{
    static const char *const number[] = {"2xx", "4xx", "5xx", "502", NULL};
    static const char *const class[] = {"2xx", "5xx", NULL};
    static const char *const freed[] = {"504", NULL};
    once__statuses final = set_of(number), released = released_set(freed);
    once__statuses classes = set_of(class);
    once__rules rules;

    T_EQ(made(&final, NULL, NULL, &rules), 0);
    T_STR(judged_by(ONCE__WHOLE, 502, "", &rules), "complete success");
    T_STR(judged_by(ONCE__WHOLE, 504, "", &rules), "give up");
    T_EQ(made(&final, &released, NULL, &rules), 0);
    T_STR(judged_by(ONCE__WHOLE, 502, "", &rules), "complete success");
    T_STR(judged_by(ONCE__WHOLE, 504, "", &rules), "release");
    T_EQ(made(NULL, &released, NULL, &rules), 0);
    T_STR(judged_by(ONCE__WHOLE, 502, "", &rules), "give up");
    T_STR(judged_by(ONCE__WHOLE, 504, "", &rules), "release");
    T_EQ(made(&classes, NULL, NULL, &rules), 0);
    T_STR(judged_by(ONCE__WHOLE, 502, "", &rules), "give up");
    T_STR(judged_by(ONCE__WHOLE, 503, "", &rules), "complete success");
}

static void unknown_replaces_the_default_and_is_stronger(void)
{
    static const char *const words[] = {"429", "503", "599", NULL};
    once__statuses unknown = unknown_set(words), none = {{0}, {0}};
    once__rules rules;

    T_EQ(made(NULL, NULL, &unknown, &rules), 0);
    T_STR(judged_by(ONCE__WHOLE, 503, "", &rules), "give up");
    T_STR(judged_by(ONCE__UNSTORABLE, 599, "", &rules), "give up");
    T_STR(judged_by(ONCE__WHOLE, 429, "", &rules), "give up");
    T_EQ(once__statuses_has(&rules.released, 429), 0);
    T_STR(judged_by(ONCE__WHOLE, 408, "", &rules), "release");
    T_STR(judged_by(ONCE__WHOLE, 502, "", &rules), "complete failure");
    T_STR(judged_by(ONCE__WHOLE, 503, "applied", &rules), "complete success");
    T_STR(judged_by(ONCE__WHOLE, 503, "not-applied", &rules), "release");
    T_STR(judged_by(ONCE__NOT_SENT, 503, "", &rules), "release");
    T_EQ(made(NULL, NULL, &none, &rules), 0);
    T_STR(judged_by(ONCE__WHOLE, 502, "", &rules), "complete failure");
    T_STR(judged_by(ONCE__UNSTORABLE, 504, "", &rules), "mark failure");
}

static void a_head_alone_says_that_the_service_is_lost(void)
{
    once__rules rules = rules_of(every());
    int observed, status;

    for (observed = ONCE__NOT_SENT; observed <= ONCE__GONE; observed++)
        for (status = 200; status <= 599; status++)
            T_EQ(once__observe_status(observed, status, text(""), &rules),
                 is_gateways(status) && (observed == ONCE__WHOLE ||
                                         observed == ONCE__UNSTORABLE)
                     ? ONCE__SERVICE_LOST
                     : observed);
    T_EQ(once__observe_status(ONCE__WHOLE, 502, text("applied"), &rules),
         ONCE__WHOLE);
    T_EQ(once__observe_status(ONCE__WHOLE, 502, text("unknown"), &rules),
         ONCE__WHOLE);
}

static void a_number_in_final_leaves_the_default_of_release(void)
{
    static const char *const words[] = {"2xx", "408", "429", NULL};
    static const char *const wide[] = {"2xx", "3xx", "4xx", "5xx", "425", NULL};
    once__rules rules = rules_of(set_of(words));

    T_STR(judged_by(ONCE__WHOLE, 408, "", &rules), "complete success");
    T_STR(judged_by(ONCE__WHOLE, 429, "", &rules), "complete success");
    T_STR(judged_by(ONCE__WHOLE, 425, "", &rules), "release");
    rules = rules_of(set_of(wide));
    T_STR(judged_by(ONCE__WHOLE, 425, "", &rules), "complete failure");
    T_STR(judged_by(ONCE__WHOLE, 408, "", &rules), "release");
}

static void release_replaces_the_default_and_is_stronger_than_a_class(void)
{
    static const char *const words[] = {"2xx", "5xx", NULL};
    static const char *const busy[] = {"503", NULL};
    once__statuses final = set_of(words), released = released_set(busy);
    once__rules rules;

    T_EQ(made(&final, &released, NULL, &rules), 0);
    T_STR(judged_by(ONCE__WHOLE, 503, "", &rules), "release");
    T_STR(judged_by(ONCE__UNSTORABLE, 503, "", &rules), "release");
    T_STR(judged_by(ONCE__WHOLE, 500, "", &rules), "complete success");
    T_STR(judged_by(ONCE__WHOLE, 429, "", &rules), "complete failure");
    T_STR(judged_by(ONCE__WHOLE, 503, "applied", &rules), "complete success");
    T_STR(judged_by(ONCE__WHOLE, 503, "unknown", &rules), "give up");
    T_STR(judged_by(ONCE__RESET, 503, "", &rules), "give up");
    T_EQ(made(NULL, &released, NULL, &rules), 0);
    T_STR(judged_by(ONCE__WHOLE, 503, "", &rules), "release");
    T_STR(judged_by(ONCE__WHOLE, 408, "", &rules), "complete failure");
}

static void a_number_in_both_lists_is_found(void)
{
    static const char *const words[] = {"2xx", "503", "599", NULL};
    once__statuses final = set_of(words);
    once__rules rules;
    char word[16];
    int status;

    for (status = 300; status <= 599; status++) {
        once__statuses released = {{0}, {0}};

        snprintf(word, sizeof(word), "%d", status);
        T_EQ(once__statuses_add_released(&released, text(word), NULL), ONCE_OK);
        T_EQ(made(&final, &released, NULL, &rules),
             status == 503 || status == 599 ? status : 0);
    }
}

/* ---- Rows of section 3 -------------------------------------------------- */

static void a_number_in_unknown_and_in_another_list_is_found(void)
{
    static const char *const words[] = {"2xx", "503", NULL};
    static const char *const freed[] = {"599", NULL};
    once__statuses final = set_of(words), released = released_set(freed);
    once__rules rules;
    char word[16];
    int status;

    for (status = 400; status <= 599; status++) {
        once__statuses unknown = {{0}, {0}};

        snprintf(word, sizeof(word), "%d", status);
        T_EQ(once__statuses_add_unknown(&unknown, text(word), NULL), ONCE_OK);
        T_EQ(made(&final, &released, &unknown, &rules),
             status == 503 || status == 599 ? status : 0);
    }
}

static void nothing_sent_releases(void)
{
    T_STR(judged(ONCE__NOT_SENT, 0, "", every()), "release");
    T_STR(judged(ONCE__NOT_SENT, 502, "", every()), "release");
    T_STR(judged(ONCE__NOT_SENT, 504, "", only_success()), "release");
}

static void a_whole_response_with_a_final_status_completes(void)
{
    int status;

    for (status = 200; status <= 599; status++)
        if (!is_declined(status) && !is_gateways(status))
            T_STR(judged(ONCE__WHOLE, status, "", every()),
                  status < 400 ? "complete success" : "complete failure");
}

static void a_gateways_error_gives_up(void)
{
    static const int statuses[] = {502, 504, 520, 521, 522, 523, 524, 529, 530};
    int i;

    for (i = 0; i < 9; i++) {
        T_STR(judged(ONCE__WHOLE, statuses[i], "", every()), "give up");
        T_STR(judged(ONCE__UNSTORABLE, statuses[i], "", every()), "give up");
        T_STR(judged(ONCE__WHOLE, statuses[i], "", only_success()), "give up");
    }
}

static void what_says_not_applied_releases_by_default(void)
{
    static const char *const classes[] = {"2xx", "4xx", NULL};
    static const int statuses[] = {401, 408, 421, 425, 429};
    int i;

    for (i = 0; i < 5; i++) {
        T_STR(judged(ONCE__WHOLE, statuses[i], "", every()), "release");
        T_STR(judged(ONCE__WHOLE, statuses[i], "", only_success()), "release");
        T_STR(judged(ONCE__WHOLE, statuses[i], "", set_of(classes)), "release");
        T_STR(judged(ONCE__UNSTORABLE, statuses[i], "", every()), "release");
    }
}

static void a_status_outside_final_is_a_failure_that_may_be_retried(void)
{
    int status;

    for (status = 100; status <= 599; status++)
        if (!is_declined(status) && !is_gateways(status))
            T_STR(judged(ONCE__WHOLE, status, "", only_success()),
                  status / 100 == 2 ? "complete success" : "complete failure");
}

static void a_status_inside_a_partial_final_is_a_success(void)
{
    static const char *const words[] = {"2xx", "404", "500", NULL};

    T_STR(judged(ONCE__WHOLE, 404, "", set_of(words)), "complete success");
    T_STR(judged(ONCE__WHOLE, 500, "", set_of(words)), "complete success");
    T_STR(judged(ONCE__WHOLE, 301, "", set_of(words)), "complete failure");
}

static void a_broken_exchange_gives_up(void)
{
    int observed;

    for (observed = ONCE__RESET; observed <= ONCE__SERVICE_LOST; observed++) {
        T_STR(judged(observed, 0, "", every()), "give up");
        T_STR(judged(observed, 200, "", every()), "give up");
        T_STR(judged(observed, 502, "", every()), "give up");
        T_STR(judged(observed, 504, "", only_success()), "give up");
        T_STR(judged(observed, 429, "", every()), "give up");
    }
}

static const char *reason(int observed, int status, const char *word)
{
    once__rules rules = rules_of(every());

    return once_reason_text(
        once__judge(observed, status, text(word), &rules).reason);
}

static void whatever_is_no_result_has_its_reason(void)
{
    T_STR(reason(ONCE__NOT_SENT, 0, ""), "not-sent");
    T_STR(reason(ONCE__RESET, 502, ""), "reset");
    T_STR(reason(ONCE__TIMED_OUT, 504, ""), "timeout");
    T_STR(reason(ONCE__BAD_RESPONSE, 502, ""), "bad-response");
    T_STR(reason(ONCE__TRUNCATED, 200, "applied"), "truncated");
    T_STR(reason(ONCE__GONE, 0, ""), "owner-gone");
    T_STR(reason(ONCE__WHOLE, 99, ""), "bad-response");
    T_STR(reason(ONCE__WHOLE, 200, "unknown"), "upstream-said");
    T_STR(reason(ONCE__UNSTORABLE, 200, "not-applied"), "upstream-said");
    T_STR(reason(ONCE__WHOLE, 429, ""), "status");
    T_STR(reason(ONCE__WHOLE, 502, ""), "status");
    T_STR(reason(ONCE__UNSTORABLE, 504, ""), "status");
    T_STR(reason(ONCE__SERVICE_LOST, 502, ""), "status");
    T_STR(reason(ONCE__WHOLE, 200, ""), "-");
    T_STR(reason(ONCE__UNSTORABLE, 500, ""), "-");
}

static void the_upstreams_word_decides_whatever_the_status(void)
{
    int status;

    for (status = 100; status <= 599; status++) {
        T_STR(judged(ONCE__WHOLE, status, "not-applied", every()), "release");
        T_STR(judged(ONCE__WHOLE, status, "no-store", every()), "mark success");
        T_STR(judged(ONCE__WHOLE, status, "unknown", every()), "give up");
        T_STR(judged(ONCE__WHOLE, status, "applied", only_success()),
              "complete success");
    }
}

static void the_word_is_compared_without_regard_to_case(void)
{
    T_STR(judged(ONCE__WHOLE, 200, "Not-Applied", every()), "release");
    T_STR(judged(ONCE__WHOLE, 200, "UNKNOWN", every()), "give up");
}

static void an_unknown_word_counts_as_absent(void)
{
    static const char *const words[] = {
        "applie", "applied ", "appliedx", "no store", "notapplied", "ok", ","};
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        T_STR(judged(ONCE__WHOLE, 201, words[i], every()), "complete success");
        T_STR(judged(ONCE__WHOLE, 500, words[i], every()), "complete failure");
    }
}

static void the_word_of_a_broken_response_does_not_count(void)
{
    static const char *const words[] = {"applied", "not-applied", "no-store",
                                        "unknown"};
    int i;

    for (i = 0; i < 4; i++) {
        T_STR(judged(ONCE__TRUNCATED, 200, words[i], every()), "give up");
        T_STR(judged(ONCE__NOT_SENT, 200, words[i], every()), "release");
    }
}

static void an_unstorable_response_is_marked(void)
{
    T_STR(judged(ONCE__UNSTORABLE, 200, "", every()), "mark success");
    T_STR(judged(ONCE__UNSTORABLE, 101, "", every()), "mark success");
    T_STR(judged(ONCE__UNSTORABLE, 500, "", every()), "mark failure");
    T_STR(judged(ONCE__UNSTORABLE, 404, "", only_success()), "mark failure");
    T_STR(judged(ONCE__UNSTORABLE, 500, "applied", every()), "mark success");
    T_STR(judged(ONCE__UNSTORABLE, 500, "no-store", every()), "mark success");
    T_STR(judged(ONCE__UNSTORABLE, 200, "not-applied", every()), "release");
    T_STR(judged(ONCE__UNSTORABLE, 200, "unknown", every()), "give up");
}

static void a_status_that_is_none_is_a_bad_header(void)
{
    static const int statuses[] = {-1, 0, 7, 99, 600, 999, 100000};
    size_t i;

    for (i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        T_STR(judged(ONCE__WHOLE, statuses[i], "", every()), "give up");
        T_STR(judged(ONCE__UNSTORABLE, statuses[i], "", every()), "give up");
        T_STR(judged(ONCE__WHOLE, statuses[i], "applied", every()), "give up");
    }
}

/* Every combination has a row, a kind goes with a record and with nothing
 * else, only a whole response is kept, and a key is freed only by proof. */
static void no_combination_frees_a_key_without_proof(void)
{
    static const char *const words[] = {"",         "applied", "not-applied",
                                        "no-store", "unknown", "?"};
    once__rules finals[3] = {rules_of(every()), rules_of(only_success()),
                             rules_of((once__statuses){{0}, {0}})};
    int observed, status, w, f, records, proof;

    for (f = 0; f < 3; f++)
        finals[f].failed_ms = 77;
    for (observed = ONCE__NOT_SENT; observed <= ONCE__SERVICE_LOST; observed++)
        for (status = 90; status <= 610; status++)
            for (w = 0; w < 6; w++)
                for (f = 0; f < 3; f++) {
                    once__verdict v = once__judge(observed, status,
                                                  text(words[w]), &finals[f]);

                    records = v.action == ONCE__DO_COMPLETE ||
                              v.action == ONCE__DO_MARK;
                    T_EQ(v.kind != ONCE_NO_KIND, records);
                    /* Only a status that speaks for itself is a failure. */
                    T_EQ(v.keep_ms,
                         records && status >= 400 && (w == 0 || w == 5) ? 77
                                                                        : 0);
                    T_EQ(v.reason == ONCE_REASON_NONE, records);
                    T_OK(v.action != ONCE__DO_COMPLETE ||
                         observed == ONCE__WHOLE);
                    proof = observed == ONCE__NOT_SENT ||
                            (!once__is_broken(observed) &&
                             (w == 2 || is_declined(status)));
                    T_OK(v.action != ONCE__DO_RELEASE || proof);
                }
}

/* ---- How an attempt ended ------------------------------------------------ */

static const char *ending(int action, int kind, int rc)
{
    static const once_record success = {.kind = ONCE_SUCCESS};
    once__verdict v = {action, kind, ONCE_REASON_NONE, 0};
    static char out[64];
    once__ending e;

    if (action == ONCE__DO_RELEASE)
        v.reason = ONCE_REASON_STATUS;
    if (action == ONCE__DO_GIVE_UP)
        v.reason = ONCE_REASON_TIMEOUT;
    e = once__verdict_ending(v, rc, &success);
    snprintf(out, sizeof(out), "%s %s", once__outcome_text(e.outcome),
             once_reason_text(e.reason));
    return out;
}

static void an_ending_is_what_was_recorded(void)
{
    T_STR(ending(ONCE__DO_COMPLETE, ONCE_SUCCESS, ONCE_OK), "success -");
    T_STR(ending(ONCE__DO_COMPLETE, ONCE_FAILURE, ONCE_OK), "failure -");
    T_STR(ending(ONCE__DO_MARK, ONCE_SUCCESS, ONCE_OK), "unstored -");
    T_STR(ending(ONCE__DO_RELEASE, 0, ONCE_OK), "released status");
    T_STR(ending(ONCE__DO_GIVE_UP, 0, ONCE_OK), "indeterminate timeout");
}

static void another_outcome_that_stands_recorded_is_the_ending(void)
{
    T_STR(ending(ONCE__DO_COMPLETE, ONCE_FAILURE, ONCE_REPLAY), "success -");
    T_STR(ending(ONCE__DO_MARK, ONCE_FAILURE, ONCE_REPLAY), "success -");
}

static void an_ending_that_was_not_recorded_is_indeterminate(void)
{
    static const int asked[] = {ONCE__DO_COMPLETE, ONCE__DO_MARK,
                                ONCE__DO_RELEASE};
    static const int lost[] = {ONCE_IN_FLIGHT, ONCE_UNKNOWN, ONCE_MISMATCH,
                               ONCE_FREE, ONCE_ECLOSED};
    size_t i, k;

    for (i = 0; i < 3; i++) {
        T_STR(ending(asked[i], ONCE_SUCCESS, ONCE_ESTORE),
              "indeterminate store-silent");
        T_STR(ending(asked[i], ONCE_SUCCESS, ONCE_ECORRUPT),
              "indeterminate store-silent");
        for (k = 0; k < 5; k++)
            T_STR(ending(asked[i], ONCE_SUCCESS, lost[k]),
                  "indeterminate owner-gone");
    }
    for (k = 0; k < 5; k++)
        T_STR(ending(ONCE__DO_GIVE_UP, 0, lost[k]), "indeterminate timeout");
    T_STR(ending(ONCE__DO_GIVE_UP, 0, ONCE_ESTORE), "indeterminate timeout");
}

int main(void)
{
    T_RUN(an_empty_set_has_nothing);
    T_RUN(a_status_is_added_alone);
    T_RUN(a_class_is_added_whole_and_alone);
    T_RUN(adding_keeps_what_was_there);
    T_RUN(other_words_are_refused_and_change_nothing);
    T_RUN(all_means_every_status_from_200_on);
    T_RUN(a_released_status_is_a_number_from_300_on);
    T_RUN(without_lists_the_defaults_count);
    T_RUN(a_number_in_final_leaves_the_default_of_release);
    T_RUN(release_replaces_the_default_and_is_stronger_than_a_class);
    T_RUN(a_number_in_both_lists_is_found);
    T_RUN(an_unknown_status_is_a_number_from_400_on);
    T_RUN(a_number_elsewhere_leaves_the_default_of_unknown);
    T_RUN(unknown_replaces_the_default_and_is_stronger);
    T_RUN(a_head_alone_says_that_the_service_is_lost);
    T_RUN(a_number_in_unknown_and_in_another_list_is_found);
    T_RUN(nothing_sent_releases);
    T_RUN(a_whole_response_with_a_final_status_completes);
    T_RUN(a_gateways_error_gives_up);
    T_RUN(what_says_not_applied_releases_by_default);
    T_RUN(a_status_outside_final_is_a_failure_that_may_be_retried);
    T_RUN(a_status_inside_a_partial_final_is_a_success);
    T_RUN(a_broken_exchange_gives_up);
    T_RUN(whatever_is_no_result_has_its_reason);
    T_RUN(the_upstreams_word_decides_whatever_the_status);
    T_RUN(the_word_is_compared_without_regard_to_case);
    T_RUN(an_unknown_word_counts_as_absent);
    T_RUN(the_word_of_a_broken_response_does_not_count);
    T_RUN(an_unstorable_response_is_marked);
    T_RUN(a_status_that_is_none_is_a_bad_header);
    T_RUN(no_combination_frees_a_key_without_proof);
    T_RUN(an_ending_is_what_was_recorded);
    T_RUN(another_outcome_that_stands_recorded_is_the_ending);
    T_RUN(an_ending_that_was_not_recorded_is_indeterminate);
    return t_done();
}
