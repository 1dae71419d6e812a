-- Slurm's submit filter: refuses --constraint=hwperf to jobs that share their nodes, since hardware counters of one job would
-- show what the others do. Where there is a filter already, call these two functions from it.

local MESSAGE = "--constraint=hwperf needs whole nodes: add --exclusive"
local INVALID_FEATURE = 2029 -- ESLURM_INVALID_FEATURE, for which Slurm's Lua has no name
local EXCLUSIVE = 0 -- what --exclusive sets; --exclusive=user doesn't

-- Whether a constraint names hwperf, alone or among others ("gpu&hwperf*2").
local function wants_counters(constraint)
    return constraint ~= nil and constraint:find("%f[%w_.%-]hwperf%f[^%w_.%-]") ~= nil
end

local function check(job, uid)
    if job.shared == EXCLUSIVE or not (wants_counters(job.features) or wants_counters(job.prefer)) then
        return slurm.SUCCESS
    end
    slurm.log_info("slurm-counters: refused hwperf without --exclusive, user %u", uid)
    return INVALID_FEATURE
end

function slurm_job_submit(job, partitions, uid)
    local result = check(job, uid)
    if result ~= slurm.SUCCESS then
        slurm.log_user(MESSAGE)
    end
    return result
end

-- `change` has only what changes, not whether the job is exclusive, so users can't add hwperf to a waiting job.
function slurm_job_modify(change, job, partitions, uid)
    return check(change, uid)
end

return slurm.SUCCESS
