// Who may write, who asks to, and who decided it.

import { ask, button, count, figures, h, mark, section, table, time } from "./elements.js";
import { call } from "./operations.js";

const STANDINGS = {
  owner: () => mark("good", "owner"),
  allowed: () => mark("good", "may write"),
  paired: () => mark("good", "may write"),
  blocked: () => mark("bad", "blocked"),
};

export async function people({ again, act, path }) {
  const one = new URLSearchParams(path.replace(/^\?/, "")).get("who");
  if (one) return person(one, { again, act });
  const [pending, visitors, keys, listed, quotas, audit] = await Promise.all([
    call("people pending"),
    call("web logins"),
    call("web keys"),
    call("people list"),
    call("people quota"),
    call("people audit", { limit: 50 }),
  ]);
  const name = (each) => `${each.channel}:${each.who}`;

  const decide = decider({ again, act });
  const revoke = (each) => async () => {
    if (!(await ask(`Revoke the key ${each.id} of ${each.who}? Programs that have it are refused.`, "Revoke"))) return;
    await act(async () => {
      await call("web revoke", { key: each.id });
      return `The key ${each.id} is revoked`;
    });
    await again();
  };
  const logOut = (whom) => async () => {
    if (!(await ask(`Log out ${whom}? All their browsers and invitations end; what they wrote stays.`, "Log out"))) return;
    await act(async () => {
      await call("web logout", { who: whom });
      return `${whom} is logged out`;
    });
    await again();
  };
  const who = h("input", { id: "allow-who", name: "who", required: true, maxlength: 200, autocomplete: "off", placeholder: "telegram:42" });
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: async (event) => {
        event.preventDefault();
        const is_block = event.submitter?.value === "block";
        const subject = who.value.trim();
        if (is_block && !(await ask(`Block ${subject}? They are not answered any more.`, "Block"))) return;
        await act(async () => {
          await call(is_block ? "people block" : "people allow", { who: subject });
          return `${subject} ${is_block ? "is blocked" : "may write"}`;
        });
        await again();
      },
    },
    h("label", { for: "allow-who" }, "Account, chat, guild, team or role"),
    who,
    h("button", { type: "submit", value: "allow", class: "primary" }, "Allow"),
    h("button", { type: "submit", value: "block" }, "Block"),
  );

  return [
    section(
      "Asking for access",
      table(
        "People and chats that ask for access",
        [
          ["Who", name],
          ["Name", (each) => each.name || "–"],
          ["Since", (each) => time(each.at)],
          [
            "Decide",
            (each) => [
              button("Approve", decide("people approve", name(each), `${name(each)} may write`), { "aria-label": `Approve ${name(each)}`, class: "primary" }),
              " ",
              button("Deny", decide("people deny", name(each), `${name(each)} was denied`, `Deny ${name(each)}?`), { "aria-label": `Deny ${name(each)}` }),
            ],
          ],
        ],
        pending,
        "Nobody asks for access.",
      ),
    ),
    section("Allow or block", form),
    section(
      "Who may write",
      table(
        "Accounts and chats with a decision",
        [
          ["Who", (each) => linkTo(name(each), each.who)],
          ["Name", (each) => each.name || "–"],
          ["Standing", (each) => (STANDINGS[each.standing] ?? (() => each.standing))()],
          ["By", (each) => (each.came_by === "setting" ? "the settings" : each.by || each.came_by)],
          ["Since", (each) => time(each.at)],
          ["Change", (each) => changes(each, name(each), decide)],
        ],
        listed,
        "No account of a platform may write yet.",
      ),
    ),
    section(
      "On the page",
      table(
        "People of the page",
        [
          ["Who", (each) => linkTo(`web:${each.who}`, `web:${each.who}`)],
          ["Role", (each) => each.role],
          ["Browsers", (each) => count(each.browsers), "number"],
          ["Until", (each) => (each.until ? time(each.until) : "–")],
          ["Last here", (each) => (each.is_open ? "now" : each.seen_at ? time(each.seen_at) : "–")],
          ["Invited until", (each) => (each.invited_until ? time(each.invited_until) : "–")],
          ["Change", (each) => (each.browsers || each.invited_until ? button("Log out", logOut(each.who), { "aria-label": `Log out ${each.who}` }) : "")],
        ],
        visitors,
        "The page has no people yet.",
      ),
      inviteForm({ again, act }),
    ),
    section(
      "Keys of the API",
      table(
        "Keys of programs, each of which is a person",
        [
          ["Key", (each) => each.id],
          ["Who", (each) => linkTo(`api:${each.who}`, `api:${each.who}`)],
          ["Since", (each) => time(each.created_at)],
          ["Revoke", (each) => button("Revoke", revoke(each), { "aria-label": `Revoke the key ${each.id}` })],
        ],
        keys,
        "There is no key of the API.",
      ),
    ),
    section(
      "Quotas of single people",
      lookUp(),
      table(
        "People with caps of their own",
        [
          ["Who", (each) => linkTo(each.whom, each.whom)],
          ["Messages in ten minutes", (each) => limit(each.turns), "number"],
          ["Tokens a day", (each) => limit(each.tokens), "number"],
          ["Dollars a day", (each) => limit(each.usd, dollars), "number"],
        ],
        quotas,
        "Nobody has caps of their own.",
      ),
    ),
    audited(audit),
  ];
}

const PLACE = /^(chat|guild|team|role):|^\*$/;
const CAPS = { "person-turns": "Messages in ten minutes", "person-tokens": "Tokens today", "person-cost": "Cost today" };
const dollars = (number) => `$${number.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 6 })}`;
const limit = (number, write = count) => (number === null ? "as usual" : number === 0 ? "no cap" : write(number));
const amount = (each, number) => (each.cap.endsWith("-cost") ? dollars(number / 1e6) : count(number));

/** Return the link to one person's page; places have none. */
function linkTo(whom, who) {
  return PLACE.test(who) ? whom : h("a", { href: `#people/?${new URLSearchParams({ who: whom })}` }, whom);
}

/** Return a function that does one thing about somebody, after a question where it shuts them out, and shows the result. */
function decider({ again, act }) {
  return (operation, who, done, question = "") => async () => {
    if (question && !(await ask(question, "Yes"))) return;
    await act(async () => {
      await call(operation, { who });
      return done;
    });
    await again();
  };
}

/** Return a form that opens the page of a person whom no entry names, such as a member of an admitted guild. */
function lookUp() {
  const who = h("input", { id: "look-who", required: true, maxlength: 200, autocomplete: "off", placeholder: "discord:42" });
  const open = (event) => {
    event.preventDefault();
    location.hash = `people/?${new URLSearchParams({ who: who.value.trim() })}`;
  };
  return h("form", { class: "row", onsubmit: open }, h("label", { for: "look-who" }, "Account"), who, h("button", { type: "submit" }, "Open"));
}

function audited(lines) {
  return section(
    "Audit",
    table(
      "Decisions, the newest first",
      [
        ["When", (each) => time(each.at)],
        ["By", (each) => each.by],
        ["What", (each) => each.what],
        ["About", (each) => each.whom || "–"],
        ["Outcome", (each) => each.outcome],
      ],
      lines,
      "Nothing was decided yet.",
    ),
  );
}

/** Return the page of one person: role, access, caps with their use, and the decisions about them. */
async function person(whom, { again, act }) {
  const [[found], audit] = await Promise.all([call("people quota", { who: whom }), call("people audit", { limit: 50, about: whom })]);
  const decide = decider({ again, act });
  const owns = found.role === "owner";
  return [
    h("p", {}, h("a", { href: "#people" }, "All people"), " · ", h("code", {}, found.whom)),
    section(
      "Role and access",
      figures(
        ["Role", owns ? "owner" : "member", owns ? "" : "admin in their own direct chat, and where the platform says so"],
        ["Accounts", found.accounts.join(", ")],
        ["Access", found.blocked_as ? mark("bad", `blocked as ${found.blocked_as}`) : found.is_named ? mark("good", "by their own id") : mark("wait", "only by a place, if any")],
      ),
      h(
        "p",
        {},
        owns
          ? button("Take ownership back", decide("owner remove", found.whom, `${found.whom} is no owner any more`, `Take ownership back from ${found.whom}? They then write only where a setting or a place admits them.`))
          : [
              button("Make owner", decide("owner add", found.whom, `${found.whom} is an owner`, `Make ${found.whom} an owner? Owners see everything here, and decide who may write.`)),
              " ",
              found.is_named && !found.blocked_as ? null : [button("Allow", decide("people allow", found.whom, `${found.whom} may write`), { class: "primary" }), " "],
              found.blocked_as ? null : button("Block", decide("people block", found.whom, `${found.whom} is blocked`, `Block ${found.whom}? They are not answered any more.`)),
            ],
      ),
    ),
    section(
      "Caps",
      quotaForm(found, { again, act }),
      table(
        "Caps of this person, over all chats and accounts",
        [
          ["Cap", (each) => CAPS[each.cap] ?? each.cap],
          ["Used", (each) => `${amount(each, each.used)} of ${amount(each, each.limit)} (${Math.round((100 * each.used) / each.limit)}%)`, "number"],
          ["More at", (each) => time(each.until)],
        ],
        found.caps,
        "No cap applies to this person alone.",
      ),
    ),
    audited(audit),
  ];
}

/** Make an invitation; it is shown this once, to be sent to the person. */
function inviteForm({ again, act }) {
  const name = h("input", { id: "invite-who", name: "who", required: true, maxlength: 32, pattern: "[a-z0-9][a-z0-9._\\-]*", autocomplete: "off", placeholder: "ann" });
  const days = h("input", { id: "invite-days", name: "days", type: "number", min: 1, max: 30, value: "7", required: true });
  const made = h("p", { role: "status" });
  const invite = async (event) => {
    event.preventDefault();
    await act(async () => {
      const [line] = await call("web invite", { who: name.value, days: Number(days.value) });
      made.replaceChildren(`For ${line.as}, once: `, h("code", {}, line.link || `${line.code} (${line.page})`));
      return `${line.as} is invited`;
    });
  };
  const form = h("form", { class: "row", "aria-label": "Invite to the page", onsubmit: invite }, h("label", { for: "invite-who" }, "Name of a person"), name, h("label", { for: "invite-days" }, "Days"), days, h("button", { type: "submit", class: "primary" }, "Invite"));
  return h("div", {}, form, made, button("Show the list anew", again));
}

function quotaForm({ whom, quota }, { again, act }) {
  const field = (name, title, { max, step } = { max: 1e12, step: 1 }) => {
    const value = quota?.[name] ?? null;
    return [h("label", { for: `quota-${name}` }, title), h("input", { id: `quota-${name}`, name, type: "number", min: 0, max, step, value: value === null ? "" : String(value), placeholder: "as usual" })];
  };
  const save = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(event.currentTarget)].map(([name, value]) => [name, value === "" ? "default" : Number(value)]));
    await act(async () => {
      await call("people quota", { who: whom, ...given });
      return `the caps of ${whom} apply from the next message`;
    });
    await again();
  };
  return [
    h("form", { class: "row", "aria-label": "Set caps of this person", onsubmit: save }, field("turns", "Messages in ten minutes"), field("tokens", "Tokens a day"), field("usd", "Dollars a day", { max: 999999, step: "any" }), h("button", { type: "submit", class: "primary" }, "Save")),
    h("p", {}, "Empty: the cap of the chat or the settings. 0: no cap. It applies from the next message, in every chat and at every gateway."),
  ];
}

function changes(each, subject, decide) {
  if (each.standing === "owner") return each.came_by === "setting" ? "in PARLOUR_OWNERS" : linkTo(subject, each.who);
  const allow = button("Allow", decide("people allow", subject, `${subject} may write`), { "aria-label": `Allow ${subject}` });
  const block = button("Block", decide("people block", subject, `${subject} is blocked`, `Block ${subject}? They are not answered any more.`), { "aria-label": `Block ${subject}` });
  const remove = button("Take back", decide("people remove", subject, `the decision about ${subject} is taken back`), { "aria-label": `Take back the decision about ${subject}` });
  return [each.standing === "blocked" ? allow : block, each.came_by === "decision" ? [" ", remove] : null];
}
