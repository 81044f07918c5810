import faulthandler, sys, os, signal, time, logging
from tests.integration.yard import *
import pytest
def test_stress(tmp_path):
    logging.basicConfig(level=logging.INFO)
    root = copy_models(tmp_path/"m", "slow", slow=("max_size: 32","max_size: 5"))
    with running(tmp_path/"y", root) as yard:
        for i in range(14):
            t=time.monotonic()
            job = slow_job(1, 4000)
            yard.submit(job); yard.until_flying("slow"); t1=time.monotonic()
            yard.cancel(job)
            try:
                (ended,) = yard.wait(job, patience=6.0); t2=time.monotonic()
            except AssertionError:
                faulthandler.dump_traceback(file=open('/tmp/workers_t/dump.txt','w'), all_threads=True)
                c = yard.supervisor.completer
                print('LATER', c._later, time.monotonic(), c.last_progress, yard.runner('slow').holding.chunks(), [ (x.state, x.stopped, x.flying, x.decided) for x in yard.runner('slow').holding.chunks()], flush=True)
                raise
            pid=yard.engine("slow")
            os.kill(pid, signal.SIGKILL)
            after = json_job("slow",[1])
            (e,) = yard.run(after); t3=time.monotonic()
            print(i, round(t1-t,2), round(t2-t1,2), round(t3-t2,2), ended.state, yard.answers(after), yard.attempts(after), flush=True)
            if i%3==0:
                job = slow_job(10, 20, run_timeout=timedelta(seconds=1))
                yard.submit(job); yard.until_flying("slow")
                os.kill(yard.engine("slow"), signal.SIGSTOP)
                yard.wait(job)
