/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve.c - an operator has found out what became of a request, and says so.
 *
 *    look --> is it what was seen? --> [intent] --> resolve --> [end]
 *              |            ^
 *              +--- reap ---+   lease expired, and no gateway left to reap it
 *
 * The store compares the fence once more, in the same step in which it decides.
 * Who, when and why are kept with the record. A decision that came twice, since
 * its first answer was lost on the way, finds its own key in the note and is
 * answered as then.
 */
#include "operate/answer.h"
#include "operate/operate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "base/error.h"
#include "base/bytes.h"

/* As notes and the audit log have it. */
static const char *const actions[] = {
    [ONCE__SUCCESS] = "success",
    [ONCE__FAILURE] = "failure",
    [ONCE__APPLIED] = "applied, response lost",
    [ONCE__REOPEN] = "reopened",
    [ONCE__FORCE] = "applied by force",
};

static const char *const verdicts[] = {
    [ONCE__RESOLVED] = "done",
    [ONCE__RESOLVED_BEFORE] = "done before",
    [ONCE__UNRESOLVED_GONE] = "gone",
    [ONCE__UNRESOLVED_FENCE] = "fence",
    [ONCE__UNRESOLVED_ATTEMPT] = "attempt",
    [ONCE__UNRESOLVED_OWNED] = "owned",
    [ONCE__UNRESOLVED_STATE] = "state",
    [ONCE__UNRESOLVED_TAKEOVER] = "takeover",
    [ONCE__UNRESOLVED_DECISION] = "decision",
};

const char *once__resolved_text(int verdict)
{
    return verdicts[verdict];
}

/* ---- The decision's own key ---------------------------------------------- */

enum { SUM = 8, MARK = ONCE__DECISION_MAX + 1 + 2 * SUM + 1 };

/* KEY.SUM: a key that comes again with another decision is found out. */
static int mark_of(const once__resolution *r, char out[MARK], once_error *err)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    uint8_t sum[EVP_MAX_MD_SIZE];
    char hex[2 * SUM + 1];
    int ok;

    ok = md != NULL && EVP_DigestInit_ex(md, EVP_sha256(), NULL) &&
         EVP_DigestUpdate(md, &r->fence, sizeof(r->fence)) &&
         EVP_DigestUpdate(md, &r->action, sizeof(r->action)) &&
         EVP_DigestUpdate(md, r->why, strlen(r->why) + 1) &&
         (r->result.size == 0 ||
          EVP_DigestUpdate(md, r->result.data, r->result.size)) &&
         EVP_DigestFinal_ex(md, sum, NULL);
    EVP_MD_CTX_free(md);
    if (!ok)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    once__hex(sum, SUM, hex);
    snprintf(out, MARK, "%s.%s", r->decision, hex);
    return ONCE_OK;
}

/* What the record's note says about this decision's key. */
static int decided_before(const once__resolution *r, const char *mark,
                          const once_record *now, int *verdict)
{
    size_t size, key = r->decision ? strlen(r->decision) : 0;
    const char *at;

    if (key == 0 || !once__note_decision(now->note, &at, &size) ||
        size <= key || at[key] != '.' || memcmp(at, r->decision, key) != 0)
        return 0;
    *verdict = size == strlen(mark) && memcmp(at, mark, size) == 0
                   ? ONCE__RESOLVED_BEFORE
                   : ONCE__UNRESOLVED_DECISION;
    return 1;
}

/* ---- What may be decided ------------------------------------------------- */

static int is_owned(const once_record *r)
{
    return r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED;
}

static int judge(const once__resolution *r, const char *mark,
                 const once_record *now)
{
    int verdict;

    if (decided_before(r, mark, now, &verdict))
        return verdict;
    if (now->attempt == 0)
        return ONCE__UNRESOLVED_GONE;
    if (now->fence != r->fence)
        return ONCE__UNRESOLVED_FENCE;
    if (r->attempt != 0 && now->attempt != r->attempt)
        return ONCE__UNRESOLVED_ATTEMPT;
    if (is_owned(now))
        return ONCE__UNRESOLVED_OWNED;
    if (now->state != ONCE_INDETERMINATE)
        return ONCE__UNRESOLVED_STATE;
    if (r->action == ONCE__REOPEN && (now->policy & ONCE_TAKEOVER) == 0)
        return ONCE__UNRESOLVED_TAKEOVER;
    return ONCE__RESOLVED;
}

/* The gateway may be gone for good, and with it the reaper. A lease whose owner
 * sent nothing is not ours to end (the next claim does), but by force. */
static int may_reap(const once__resolution *r, const once_op *seen)
{
    return seen->left_ms == 0 && seen->record.fence == r->fence &&
           (seen->record.state == ONCE_DISPATCHED ||
            (seen->record.state == ONCE_CLAIMED && r->action == ONCE__FORCE));
}

/* Refused: another operator was faster, and we look again anyway. */
static int reap(once_engine *e, const once__resolution *r, once_error *err)
{
    once_op op = {.verb = ONCE_OP_REAP,
                  .keep_ms = r->keep_ms,
                  .store_ms = ONCE__OPERATE_MS};
    int rc;

    memcpy(op.name, r->name, ONCE_NAME_SIZE);
    rc = once_apply(e, &op, err);
    once_op_clear(&op);
    return rc < 0 ? rc : ONCE_OK;
}

/* Looks, and judges what it sees; a dry run takes a lost owner for reaped. */
static int look(once_engine *e, const once__resolution *r, const char *mark,
                once_op *out, once_error *err)
{
    int rc = once__look(e, r->name, out, err);

    if (rc >= 0 && may_reap(r, out)) {
        if (r->dry)
            out->record.state = ONCE_INDETERMINATE;
        else
            rc = reap(e, r, err);
        if (rc >= 0 && !r->dry) {
            once_op_clear(out);
            rc = once__look(e, r->name, out, err);
        }
    }
    return rc < 0 ? rc : judge(r, mark, &out->record);
}

/* ---- Deciding ------------------------------------------------------------ */

static int settle(once_engine *e, const once__resolution *r, const char *mark,
                  once_bytes result, once_op *out, once_error *err)
{
    int reopen = r->action == ONCE__REOPEN;
    char note[ONCE__NOTE_SIZE];
    int rc;

    once__note_make(r->who, r->program, r->decision ? mark : NULL,
                    actions[r->action], r->why, note);
    once_op_clear(out);
    *out = (once_op){.verb = reopen ? ONCE_OP_REOPEN : ONCE_OP_RESOLVE,
                     .kind = reopen                       ? ONCE_NO_KIND
                             : r->action == ONCE__FAILURE ? ONCE_FAILURE
                                                          : ONCE_SUCCESS,
                     .keep_ms = r->keep_ms,
                     .fence = r->fence,
                     .result = result,
                     .note = {note, strlen(note)},
                     .store_ms = ONCE__OPERATE_MS};
    memcpy(out->name, r->name, ONCE_NAME_SIZE);
    rc = once_apply(e, out, err);
    out->result = out->note = (once_bytes){NULL, 0}; /* gone with this call */
    return rc <= 0 ? rc : judge(r, mark, &out->record);
}

/* What the audit log gets before and after. After ONCE_ESTORE the store may have
 * done it; every other error and answer means that it did not. */
static int settle_audited(once_engine *e, const once__resolution *r,
                          const char *mark, once_bytes result, once_op *out,
                          once_error *err)
{
    static const char *const kinds[] = {
        [ONCE__SUCCESS] = "success", [ONCE__FAILURE] = "failure",
        [ONCE__APPLIED] = "applied", [ONCE__FORCE] = "applied",
        [ONCE__REOPEN] = NULL,
    };
    uint8_t digest[ONCE__AUDIT_HASH];
    once__audit_entry entry = {.action = r->action == ONCE__REOPEN ? "reopen"
                                                                   : "resolve",
                               .kind = kinds[r->action],
                               .who = r->who,
                               .store = r->store,
                               .incarnation = r->incarnation,
                               .name = r->name,
                               .fence = r->fence,
                               .attempt = out->record.attempt,
                               .why = r->why,
                               .decision = r->decision};
    enum once__audit_step step = ONCE__AUDIT_REFUSED;
    uint64_t seq = 0;
    int rc;

    if (result.size > 0) {
        once__audit_digest(result, digest);
        entry.digest = digest;
    }
    rc = once__audit_begin(r->audit, &entry, &seq, err);
    if (rc < 0) {
        once_error why = err != NULL ? *err : (once_error){0, ""};

        return once__fail(err, rc == ONCE_ESTORE ? ONCE_EOPEN : rc,
                          ONCE__UNAUDITED "%.200s. Nothing was decided",
                          why.text);
    }
    rc = settle(e, r, mark, result, out, err);
    if (rc == ONCE__RESOLVED || rc == ONCE__RESOLVED_BEFORE)
        step = ONCE__AUDIT_DONE;
    else if (rc == ONCE_ESTORE)
        step = ONCE__AUDIT_UNKNOWN;
    if (once__audit_end(r->audit, &entry, seq, step,
                        rc > 0 ? once__resolved_text(rc) : NULL,
                        rc < 0 ? NULL : err) < 0)
        return rc; /* it stands as it is: `err` says what the log lacks */
    return rc;
}

static int decide(once_engine *e, const once__resolution *r, const char *mark,
                  once_op *out, once_error *err)
{
    once_bytes result = r->result, lost = {NULL, 0};
    int rc = ONCE_OK;

    if (r->action == ONCE__APPLIED || r->action == ONCE__FORCE) {
        rc = once__answer_lost(&lost, err);
        result = lost;
    }
    if (rc == ONCE_OK)
        rc = settle_audited(e, r, mark, result, out, err);
    free((void *)(uintptr_t)lost.data);
    return rc;
}

int once__resolve(once_engine *e, const once__resolution *r, once_op *out,
                  once_error *err)
{
    char mark[MARK] = "";
    int rc = ONCE_OK;

    memset(out, 0, sizeof(*out));
    if (err != NULL)
        *err = (once_error){0, ""};
    if (r->decision != NULL)
        rc = mark_of(r, mark, err);
    if (rc == ONCE_OK)
        rc = look(e, r, mark, out, err);
    if (rc == ONCE__UNRESOLVED_STATE && r->action == ONCE__FORCE &&
        out->record.state == ONCE_ABSENT)
        rc = ONCE__RESOLVED; /* nothing was sent: reaped, and so free */
    else if (rc == ONCE__RESOLVED && !r->dry)
        rc = decide(e, r, mark, out, err);
    return rc;
}

/* ---- Many ----------------------------------------------------------------- */

/* One after the other, each with its own lines in the audit log. It stops where
 * it is unknown what the store did, or where nothing can be written down. */
int once__resolve_batch(once_engine *e, const once__resolution *what,
                        const once__batch_line *lines, size_t n,
                        once__batch_each *each, void *user)
{
    once__resolution one = *what;
    size_t i;
    int rc = ONCE_OK;

    for (i = 0; i < n && rc >= 0; i++) {
        once_error err = {0, ""};
        once_op now;

        memcpy(one.name, lines[i].name, ONCE_NAME_SIZE);
        one.fence = lines[i].fence;
        one.attempt = lines[i].attempt;
        rc = once__resolve(e, &one, &now, &err);
        if (each(user, i, rc, &one, &now.record, &err) != 0 && rc >= 0)
            rc = ONCE_ECLOSED;
        once_op_clear(&now);
    }
    return rc < 0 ? rc : ONCE_OK;
}
