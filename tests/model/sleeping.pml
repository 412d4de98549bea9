/* Sleeping and waking: waiters of operations share one doorbell, an eventfd that a peer rings; the progress thread has
 * another one.
 *
 * A waiter looks, under the group's lock, whether its operation has completed. If not, it arms (a ringer that finds
 * nobody armed saves the system call) and remembers the generation; then it looks once more and gives up the lock. One
 * of the waiters, the leader, sleeps in epoll; the others sleep until the generation has moved on. The leader takes the
 * ring off the doorbell, gives up the lead, moves the generation on and wakes all, before it looks: if it returns, one of
 * the others leads. A waiter whose look finds something moves the generation on too, and rings for the leader.
 *
 * The progress thread sleeps until a need is raised, as by an operation with a future. It says that it is going to sleep
 * under the lock under which needs are raised; whoever raises one wakes it if it has said so.
 *
 * Arrivals come from a peer that stores a word and then rings if somebody is armed. Both sides fence, so their steps are
 * taken as sequentially consistent here. Deadlines are left out: nobody is woken by time.
 *
 * Operation 0 completes with the first word of a peer, operation 1 with the last. Waiters 1, 3, ... wait for the latter.
 *
 * Checked: every waiter returns, and the progress thread meets every need (else: an invalid end state). The model's end
 * is the end of all processes, so one that sleeps for ever is found. run_spin.py sets the macros:
 *
 *   WAITERS           threads that wait
 *   ARRIVALS          words of peers
 *   DRAIN_FOR_ALL     each waiter sleeps on the doorbell itself; the first that wakes takes the ring, and wakes nobody
 *   LOOK_THEN_ARM     a waiter does not look again after it has armed
 *   SILENT_LEADER     the leader does not move the generation on
 *   LATE_GENERATION   a waiter remembers the generation after it has given up the lock
 *   DECIDE_THEN_ARM   the progress thread decides to sleep, and says so in a step of its own
 */

#define NOBODY  255

byte landed;                 /* words that a peer has stored */
byte found;                  /* of them, those that a look has found */
byte armed;                  /* waiters that may sleep */
bool doorbell;               /* the eventfd is readable */
byte generation;
byte leader = NOBODY;        /* the waiter that sleeps in epoll, or is on its way there */
bool lock;

bool need;                   /* something is to be done by the progress thread */
bool is_sleeping;            /* what the progress thread has said */
bool wake_fd;                /* its own eventfd is readable */
byte num_met;

#define ACQUIRE  atomic { !lock -> lock = true }
#define RELEASE  lock = false

#define WANTED(self)  ((self) % 2 -> ARRIVALS : 1)
#define IS_DONE(self)  (found >= WANTED(self))

/* Under the lock. Whoever finds something wakes all that sleep: it may be what they wait for. */
inline look() {
    d_step {
        if
        :: landed > found ->
            found = landed;
#ifndef DRAIN_FOR_ALL
            generation++;
#endif
            if
            :: armed > 0 -> doorbell = true
            :: else
            fi
        :: else
        fi
    }
}

proctype waiter(byte self) {
    byte seen;
    ACQUIRE;
    do
    :: IS_DONE(self) -> break
    :: else ->
        look();
        if
        :: IS_DONE(self) -> break
        :: else
        fi;
        armed++;
#ifndef LATE_GENERATION
        seen = generation;
#endif
#ifndef LOOK_THEN_ARM
        look();
#endif
        if
        :: IS_DONE(self) -> armed--; break
        :: else
        fi;
#ifdef DRAIN_FOR_ALL
        RELEASE;
        atomic { doorbell -> doorbell = false };
        ACQUIRE;
#else
        if
        :: leader == NOBODY ->
            leader = self;
            RELEASE;
            atomic { doorbell -> doorbell = false };
            ACQUIRE;
            leader = NOBODY
#ifndef SILENT_LEADER
            ; generation++ /* wakes all others: one of them will lead */
#endif
        :: else ->
            RELEASE;
#ifdef LATE_GENERATION
            seen = generation;
#endif
            generation != seen;
            ACQUIRE
        fi;
#endif
        armed--
    od;
    RELEASE
}

/* Stores the words of the peers, each followed by a ring if somebody is armed. */
proctype peer() {
    byte i;
    for (i : 1 .. ARRIVALS) {
        landed++;
        if
        :: armed > 0 -> doorbell = true
        :: else
        fi
    }
}

/* Raises needs, one after the other, as a thread does that starts operations with futures. */
proctype starter() {
    byte i;
    for (i : 1 .. 2) {
        num_met == i - 1; /* the callback of the one before has run */
        ACQUIRE;
        need = true;
        if
        :: is_sleeping -> wake_fd = true
        :: else
        fi;
        RELEASE
    }
}

proctype progress_thread() {
    do
    :: num_met == 2 -> break
    :: else ->
        ACQUIRE;
        if
        :: need -> need = false; num_met++; RELEASE
        :: else ->
#ifdef DECIDE_THEN_ARM
            RELEASE; /* decided; a need that is raised now finds nobody asleep */
            ACQUIRE;
#endif
            is_sleeping = true;
            RELEASE;
            atomic { wake_fd -> wake_fd = false };
            ACQUIRE;
            is_sleeping = false;
            RELEASE
        fi
    od
}

init {
    byte i;
    atomic {
        for (i : 0 .. WAITERS - 1) { run waiter(i) }
        run peer();
        run starter();
        run progress_thread();
        i = 0
    }
}
