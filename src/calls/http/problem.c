/* SPDX-License-Identifier: Apache-2.0 */
/*
 * problem.c - the bodies of our own answers, RFC 9457 (docs/http.md, 2).
 *
 * The shape is fixed, so it is printed and not built. Only `detail` can come
 * from elsewhere: it is escaped so that whatever it holds, the body is JSON in
 * US-ASCII. It refuses to be long: a detail is cut, between characters.
 */
#include "calls/http/http.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { DETAIL_MAX = 256 };

static const struct problem {
    const char *code;
    int status;
    const char *title;
    int retryable, safe_new_key;
    const char *state;
    const char *error;
    const char *detail;
} problems[] = {
#define PROBLEM(name, code, status, title, again, fresh, state, error, detail) \
    {code, status, title, again, fresh, state, error, detail},
    ONCE__PROBLEMS(PROBLEM)
#undef PROBLEM
};

static const struct problem *problem_of(int problem)
{
    assert(problem >= 0 && problem < ONCE__PROBLEM_COUNT);
    return &problems[problem];
}

int once__problem_status(int problem)
{
    return problem_of(problem)->status;
}

const char *once__problem_code(int problem)
{
    return problem_of(problem)->code;
}

/*
 * What stands for `ch` in a JSON string: one to six bytes, no NUL. A byte
 * outside ASCII may be part of anything, also of nothing that is UTF-8: it
 * becomes a question mark.
 */
static size_t escape(unsigned char ch, char out[6])
{
    static const char digits[] = "0123456789abcdef";

    if (ch == '"' || ch == '\\') {
        out[0] = '\\';
        out[1] = (char)ch;
        return 2;
    }
    if (ch < ' ' || ch == 0x7f) {
        memcpy(out, "\\u00", 4);
        out[4] = digits[ch >> 4];
        out[5] = digits[ch & 15];
        return 6;
    }
    out[0] = (char)(ch < 0x7f ? ch : '?');
    return 1;
}

static void escape_text(const char *text, char out[DETAIL_MAX + 1])
{
    char piece[6];
    size_t n, used = 0;

    for (; *text != '\0'; text++) {
        n = escape((unsigned char)*text, piece);
        if (used + n > DETAIL_MAX)
            break;
        memcpy(out + used, piece, n);
        used += n;
    }
    out[used] = '\0';
}

static const char *truth(int value)
{
    return value ? "true" : "false";
}

size_t once__problem_body(int problem, int status, int recorded,
                          const char *detail, char *out)
{
    const struct problem *p = problem_of(problem);
    char escaped[DETAIL_MAX + 1], member[32] = "";
    int n;

    escape_text(detail != NULL ? detail : p->detail, escaped);
    if (recorded != 0)
        (void)snprintf(member, sizeof(member), "\"recorded_status\":%d,",
                       recorded);
    n = snprintf(out, ONCE__PROBLEM_MAX,
                 "{\"type\":\"urn:problem-type:once:%s\",\"title\":\"%s\","
                 "\"status\":%d,\"detail\":\"%s\",\"code\":\"%s\","
                 "\"retryable\":%s,\"safe_new_key\":%s,\"state\":\"%s\",%s"
                 "\"error\":{\"type\":\"%s\",\"code\":\"%s\","
                 "\"message\":\"%s\"}}",
                 p->code, p->title, status != 0 ? status : p->status, escaped,
                 p->code, truth(p->retryable), truth(p->safe_new_key), p->state,
                 member, p->error, p->code, escaped);
    assert(n > 0 && n < ONCE__PROBLEM_MAX);
    return (size_t)n;
}
