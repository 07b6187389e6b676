"""The seams between the three packages: Protocols with few methods, and the records they exchange.

Everything here is stdlib only. A second backend passes the port's contract suite in tests/contract/.
"""

from gateway.ports.channel import Accepted as Accepted
from gateway.ports.channel import Activity as Activity
from gateway.ports.channel import Capabilities as Capabilities
from gateway.ports.channel import Channel as Channel
from gateway.ports.channel import ChannelContext as ChannelContext
from gateway.ports.channel import ChannelKind as ChannelKind
from gateway.ports.channel import ChannelState as ChannelState
from gateway.ports.channel import Intake as Intake
from gateway.ports.channel import Verdict as Verdict
from gateway.ports.journal import Acceptance as Acceptance
from gateway.ports.journal import AcceptedAs as AcceptedAs
from gateway.ports.journal import Commit as Commit
from gateway.ports.journal import DeadLetter as DeadLetter
from gateway.ports.journal import EndState as EndState
from gateway.ports.journal import InboxRow as InboxRow
from gateway.ports.journal import Job as Job
from gateway.ports.journal import Jobs as Jobs
from gateway.ports.journal import Journal as Journal
from gateway.ports.journal import Lease as Lease
from gateway.ports.journal import Line as Line
from gateway.ports.journal import People as People
from gateway.ports.journal import Records as Records
from gateway.ports.journal import SessionRow as SessionRow
from gateway.ports.journal import Step as Step
from gateway.ports.journal import StoredRecord as StoredRecord
from gateway.ports.journal import TurnRecord as TurnRecord
from gateway.ports.journal import TurnStory as TurnStory
from gateway.ports.journal import Usage as Usage
from gateway.ports.journal import UsageRow as UsageRow
from gateway.ports.memory import Document as Document
from gateway.ports.memory import Documents as Documents
from gateway.ports.memory import Hit as Hit
from gateway.ports.memory import SearchIndex as SearchIndex
from gateway.ports.memory import SessionInfo as SessionInfo
from gateway.ports.memory import Sessions as Sessions
from gateway.ports.memory import ShownLine as ShownLine
from gateway.ports.observe import Meter as Meter
from gateway.ports.outbox import Delivery as Delivery
from gateway.ports.outbox import Outbox as Outbox
from gateway.ports.outbox import PartRow as PartRow
from gateway.ports.outbox import PartState as PartState
from gateway.ports.outbox import Preview as Preview
from gateway.ports.outbox import Previews as Previews
from gateway.ports.store import EXPIRES as EXPIRES
from gateway.ports.store import Limits as Limits
from gateway.ports.store import Store as Store
