/* SPDX-License-Identifier: Apache-2.0 */

/* Hybrid training: a parameter server that holds lookups back, and dense workers that train asynchronously within a
 * staleness (hybrid/src/server/step_ledger.cpp).
 *
 * A worker looks up step t, gets an answer, makes its backward pass, and sends its part, the gradient of the step. All
 * workers end a step together, as their dense model is synchronous. A worker has at most STALENESS + 1 batches in
 * flight, from the lookup until the server has taken the part.
 *
 * Lookups and parts of all workers go through one embedding worker, in order. It may lose batches: the dense worker then
 * sends a void notice over its own link, which may overtake the lookup.
 *
 * Once, the workers may die and begin a new generation at the steps that are applied. Messages of the old generation
 * are still under way then.
 *
 * Checked:
 *   rule 1   an answer for step t is given when all parts up to step t - 1 - STALENESS are in the table
 *   rule 2   one part or void notice per worker and step, and none of an older generation
 *   rule 5   with EXACT, an answer contains these parts and no others
 *   rule 6   each batch that was started ends once: trained, void, or ended by the new generation
 *   rule 7   nothing waits for ever (else: an invalid end state)
 *   the window: lookups and parts are of steps below num_applied + 2 * STALENESS + 2
 *
 * test_models.py sets the macros:
 *
 *   WORKERS, STEPS, STALENESS   sizes
 *   LOSSES                      batches that may be lost
 *   RESTARTS                    1: a new generation may begin
 *   EXACT                       exact order
 *   BOUND_OFF_BY_ONE            mutant: an answer may lack one step more
 *   NO_VOID                     mutant: a lost batch sends no void notice
 *   ANY_GENERATION              mutant: the server ignores generations
 *   BEHIND_LOOKUPS              mutant: the server takes no message while it holds the lookup before it
 */

#define ALL     ((1 << WORKERS) - 1)
#define WINDOW  (2 * STALENESS + 2)

mtype = { LOOKUP, PART };

/* From the embedding worker: kind, generation, worker, step. */
chan requests = [WORKERS * (STALENESS + 2)] of { mtype, byte, byte, byte };
/* Void notices of the dense workers: generation, worker, step. */
chan voids = [WORKERS * (STALENESS + 2)] of { byte, byte, byte };

byte generation = 1;
byte num_applied;             /* steps below it are applied */
byte got[STEPS];              /* bit r: the part of worker r, or its void notice, has come */
byte in_table[STEPS];         /* the same for applied steps */
byte held[STEPS];             /* bit r: the lookup of worker r waits */
byte settled[STEPS];          /* bit r: its lookup was answered, or its part has come */
byte answered[STEPS];         /* bit r: worker r has its rows */

byte next[WORKERS];           /* step of the next lookup */
byte current[WORKERS];        /* step of the dense model */
byte backward[WORKERS];       /* steps whose backward pass is over */
byte taken[WORKERS];          /* parts and void notices that the server has taken, in order of steps */
byte losses;
byte num_held;
byte first_step;              /* of this generation */

#define BIT(r)      (1 << (r))
#define MAY_ANSWER(t)  ((t) <= num_applied + STALENESS + OFFSET)
#ifdef BOUND_OFF_BY_ONE
#define OFFSET 1
#else
#define OFFSET 0
#endif

inline answer(r, t) {
    /* Rule 1. */
    assert((t) <= STALENESS || in_table[(t) - 1 - STALENESS] == ALL);
#ifdef EXACT
    assert(num_applied == ((t) > first_step + STALENESS -> (t) - STALENESS : first_step));
#endif
    answered[t] = answered[t] | BIT(r);
    settled[t] = settled[t] | BIT(r)
}

inline may_apply(result) {
    result = num_applied < STEPS && got[num_applied] == ALL;
#ifdef EXACT
    step = num_applied;
    do
    :: result && step < STEPS && step <= num_applied + STALENESS ->
        result = settled[step] == ALL;
        step++
    :: else -> break
    od
#endif
}

/* Applies all steps that are complete, and answers the lookups that waited. */
inline advance() {
    do
    :: may_apply(ready);
        if
        :: !ready -> break
        :: else
        fi;
        in_table[num_applied] = got[num_applied];
        num_applied++;
        step = num_applied;
        do
        :: step < STEPS && MAY_ANSWER(step) ->
            worker = 0;
            do
            :: worker < WORKERS ->
                if
                :: held[step] & BIT(worker) ->
                    held[step] = held[step] & ~BIT(worker);
                    num_held--;
                    answer(worker, step)
                :: else
                fi;
                worker++
            :: else -> break
            od;
            step++
        :: else -> break
        od
    od
}

inline take(g, r, t) {
    /* Rule 2. */
    assert(g == generation);
    assert(t >= num_applied && t < num_applied + WINDOW);
    assert((got[t] & BIT(r)) == 0);
    got[t] = got[t] | BIT(r);
    settled[t] = settled[t] | BIT(r);
    if
    :: held[t] & BIT(r) -> held[t] = held[t] & ~BIT(r); num_held--
    :: else
    fi;
    do
    :: taken[r] < STEPS && (taken[r] < num_applied || (got[taken[r]] & BIT(r))) -> taken[r]++
    :: else -> break
    od;
    advance()
}

#ifdef ANY_GENERATION
#define IS_OLD(g) false
#else
#define IS_OLD(g) (g != generation)
#endif

#ifdef BEHIND_LOOKUPS
#define IS_FREE  (num_held == 0)
#else
#define IS_FREE  true
#endif

active proctype server() {
    byte g, r, t, step, worker;
    bool ready;
end:
    do
    :: atomic { nempty(requests) && IS_FREE ->
        if
        :: requests ? LOOKUP, g, r, t ->
            if
            :: IS_OLD(g)
            :: else ->
                if
                /* Its void notice was faster. */
                :: t < num_applied || (got[t] & BIT(r))
                :: else ->
                    assert(t < num_applied + WINDOW);
                    if
                    :: MAY_ANSWER(t) -> answer(r, t); advance()
                    :: else -> held[t] = held[t] | BIT(r); num_held++
                    fi
                fi
            fi
        :: requests ? PART, g, r, t ->
            if
            :: IS_OLD(g)
            :: else -> take(g, r, t)
            fi
        fi;
        g = 0; r = 0; t = 0; step = 0; worker = 0; ready = false }
    :: atomic { voids ? g, r, t ->
        if
        :: IS_OLD(g)
        :: else -> take(g, r, t)
        fi;
        g = 0; r = 0; t = 0; step = 0; worker = 0; ready = false }
    od
}

#define IS_IN_STEP(r)  (backward[r] == current[r])
/* For up to two workers. */
#define ALL_ARE_OVER(t)  (backward[0] > (t) && backward[WORKERS - 1] > (t))

active [WORKERS] proctype dense_worker() {
    byte self = _pid - 1;
    do
    :: atomic { next[self] < STEPS && next[self] < taken[self] + STALENESS + 1 && nfull(requests) ->
        requests ! LOOKUP, generation, self, next[self];
        next[self]++ }
    /* The backward pass. */
    :: atomic { current[self] < STEPS && IS_IN_STEP(self) && current[self] < next[self] &&
                (answered[current[self]] & BIT(self)) && nfull(requests) ->
        requests ! PART, generation, self, current[self];
        backward[self]++ }
    /* The batch is lost: before its answer, or after it. */
    :: atomic { losses < LOSSES && current[self] < STEPS && IS_IN_STEP(self) && current[self] < next[self] ->
        losses++;
#ifndef NO_VOID
        voids ! generation, self, current[self];
#endif
        backward[self]++ }
    /* The dense synchronisation. */
    :: atomic { current[self] < STEPS && ALL_ARE_OVER(current[self]) -> current[self]++ }
    /* Rule 6: all batches that were started have ended. A new generation may need a worker that is done. */
    :: atomic { num_applied == STEPS && current[self] == STEPS ->
        assert(taken[self] == STEPS && next[self] == STEPS && backward[self] == STEPS);
        break }
    od
}

#if RESTARTS > 0
/* The dense workers die, and others begin where the table is. */
active proctype restart() {
    byte i;
    atomic {
        generation++;
        first_step = num_applied;
        i = num_applied;
        do
        :: i < STEPS -> got[i] = 0; held[i] = 0; settled[i] = 0; answered[i] = 0; i++
        :: else -> break
        od;
        num_held = 0;
        i = 0;
        do
        :: i < WORKERS ->
            next[i] = num_applied; current[i] = num_applied; backward[i] = num_applied; taken[i] = num_applied; i++
        :: else -> break
        od;
        i = 0
    }
}
#endif
